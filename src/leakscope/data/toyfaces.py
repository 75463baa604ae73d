"""Drawn faces: as many identities as wanted, on any machine, with nobody's picture in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.seeds import generator
from leakscope.data.face_canvas import Look
from leakscope.data.face_drawing import draw
from leakscope.data.images import checked

# Ranges of what makes a person, and of what one picture of a person may change. Lengths are in units
# of the face's half height; a value is drawn uniformly from its range.
PERSON: dict[str, tuple[float, float]] = {
    "tone": (0.0, 1.0), "undertone": (-1.0, 1.0),
    "face_width": (0.62, 0.86), "jaw": (0.0, 0.38), "ears": (0.08, 0.17),
    "hair_colour": (0.0, 1.0), "hair_light": (0.75, 1.2), "hair_volume": (0.04, 0.24), "hairline": (-0.72, -0.3),
    "hair_arch": (0.15, 1.5), "parting": (-0.35, 0.35), "wave": (0.0, 0.09), "wave_rate": (5.0, 14.0),
    "style": (0.0, 1.0), "bun": (0.0, 1.0),
    "eye_spacing": (0.25, 0.39), "eye_height": (-0.16, 0.04), "eye_size": (0.1, 0.17), "eye_shape": (0.5, 0.85),
    "eye_tilt": (-0.25, 0.25), "eye_colour": (0.0, 1.0), "iris": (0.5, 0.75),
    "brow_height": (0.12, 0.22), "brow_thick": (0.015, 0.055), "brow_slope": (-0.35, 0.35), "brow_width": (0.1, 0.2),
    "nose_length": (0.22, 0.4), "nose_width": (0.06, 0.15),
    "mouth_width": (0.17, 0.36), "mouth_height": (0.44, 0.56), "lips": (0.03, 0.075), "lip_red": (0.0, 1.0),
    "glasses": (0.0, 1.0), "glasses_size": (0.17, 0.25), "glasses_shape": (0.7, 1.0), "glasses_colour": (0.0, 1.0),
    "beard": (0.0, 1.0), "beard_line": (0.15, 0.45), "freckles": (0.0, 1.0),
}  # fmt: skip
PICTURE: dict[str, tuple[float, float]] = {
    "shift_x": (-0.09, 0.09), "shift_y": (-0.02, 0.12), "turn": (-0.14, 0.14), "scale": (0.6, 0.72),
    "yaw": (-0.16, 0.16), "nod": (-0.05, 0.05),
    "light_x": (-1.0, 1.0), "light_y": (-1.0, 0.2), "light_strength": (0.08, 0.38), "exposure": (0.78, 1.12),
    "warmth": (-0.06, 0.06),
    "smile": (-0.07, 0.17), "mouth_open": (-0.07, 0.1), "eye_open": (0.45, 1.1), "brow_raise": (-0.03, 0.06),
    "gaze": (-0.3, 0.3),
    "back_red": (0.1, 0.95), "back_green": (0.1, 0.95), "back_blue": (0.1, 0.95), "back_change": (-0.3, 0.3),
    "back_turn": (-1.0, 1.0), "spot_x": (-1.0, 1.0), "spot_y": (-1.0, 1.0), "spot_size": (0.1, 0.8),
    "spot_light": (-0.25, 0.25),
    "shirt_red": (0.05, 0.9), "shirt_green": (0.05, 0.9), "shirt_blue": (0.05, 0.9),
}  # fmt: skip
_NAMES = (*PERSON, *PICTURE)
_LUMINANCE = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
_CHUNK = 64  # images drawn at once: enough to hide the cost of a call, few enough for the cache


@DATASETS.register("toyfaces")
@dataclass(frozen=True)
class ToyFaces:
    """Cartoon faces, RGB or grey: an identity fixes shape, colours, hair and features; a picture varies the rest.

    Pose, light, expression, clothes and background change from picture to picture. A picture depends on
    the seed, the number of its identity and its own number alone, so `first_identity=1000` gives people
    who are in no set of the first thousand: an identity-disjoint public set.
    """

    identities: int = 100
    images: int = 20
    first_identity: int = 0
    size: int = 64
    grey: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.identities < 2:
            raise ValueError(f"identities must be at least 2, not {self.identities}")
        if self.images < 1 or self.first_identity < 0:
            raise ValueError("images must be at least 1 and first_identity at least 0")
        if not 16 <= self.size <= 512:
            raise ValueError(f"size must be between 16 and 512 pixels, not {self.size}")

    def load(self, root: Path | None) -> ImageSet:
        numbers = range(self.first_identity, self.first_identity + self.identities)
        people, pictures = zip(*(self._draws(number) for number in numbers), strict=True)
        person = torch.stack(people).repeat_interleave(self.images, dim=0)
        picture = torch.cat(pictures)
        values = _placed(torch.cat([person, picture], dim=1))
        canvas = torch.empty(len(values), 3, self.size, self.size)
        for start in range(0, len(values), _CHUNK):
            draw(Look(values[start : start + _CHUNK], _NAMES), canvas[start : start + _CHUNK], PICTURE)
        if self.grey:
            canvas = (canvas * _LUMINANCE).sum(1, keepdim=True)
        labels = torch.arange(self.identities).repeat_interleave(self.images)
        return checked(ImageSet(canvas, labels, tuple(f"id{number:05d}" for number in numbers)), "toyfaces")

    def _draws(self, number: int) -> tuple[Tensor, Tensor]:
        """Uniform numbers for one person and, row by row, for its pictures: more rows change no earlier one."""
        rng = generator(self.seed, "toyfaces", number)
        return torch.rand(len(PERSON), generator=rng), torch.rand(self.images, len(PICTURE), generator=rng)


def _placed(uniform: Tensor) -> Tensor:
    """Numbers in [0, 1) moved into their ranges."""
    low, high = torch.tensor([*PERSON.values(), *PICTURE.values()]).unbind(1)
    return torch.lerp(low, high, uniform)
