"""An exported target in use: the client's half and the server's half."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from leakscope.core.defense import build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.experiments.building import build_split
from leakscope.models.exported import ExportedTarget


@dataclass(frozen=True)
class Deployed:
    """A target that was loaded for use: `client` runs where the picture is, `server` where the features arrive."""

    split: SplitModel
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    device: torch.device

    @classmethod
    def load(cls, folder: str | Path, *, trust_code: bool = False, device: str | torch.device = "cpu") -> Deployed:
        """The target in a folder that `leakscope export` wrote, in eval mode; its weights are checked by their hash."""
        architecture = ExportedTarget(str(folder), trust_code=trust_code)
        found = architecture.exported
        split = build_split(
            architecture, found.cut, build_defense(found.defense), example=torch.zeros(2, *found.shape),
            classes=len(found.classes), seed=found.seed,
        )  # fmt: skip
        place = torch.device(device)
        return cls(split.to(place).eval().requires_grad_(False), found.shape, found.classes, place)

    @torch.no_grad()
    def client(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """What leaves the device for N×C×H×W pictures in [0, 1], with the release of the defence.

        A random release draws from torch's own generator, or from `rng`; never fix its seed in use.
        """
        if x.ndim != 4 or tuple(x.shape[1:]) != self.shape:
            wanted = "×".join(map(str, self.shape))
            raise UsageError(f"pictures have the shape {tuple(x.shape)}; give N×{wanted}")
        if not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):
            raise UsageError("pixels must be float in [0, 1]; divide 8-bit values by 255 and do not normalise")
        return self.split.release(x.to(self.device), rng)

    @torch.no_grad()
    def server(self, z: Tensor) -> Tensor:
        """N×classes scores of what clients sent."""
        return self.split.decide(z.to(self.device), torch.zeros(len(z), *self.shape, device=self.device))

    def __call__(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Scores of pictures, through both halves."""
        return self.server(self.client(x, rng))

    def halves(self) -> tuple[nn.Module, nn.Module]:
        """Both halves as modules of their own, so that neither side holds the other's weights (torch.fx)."""
        return self.split.export(torch.zeros(2, *self.shape, device=self.device))
