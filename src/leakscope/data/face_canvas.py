"""A batch of pictures to paint on: parameters by name, pixels, and shapes with smooth borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Look:
    """The parameters of a batch of pictures, by name."""

    def __init__(self, values: Tensor, names: Sequence[str]) -> None:
        self.values = values  # B×P
        self.names = names
        self._columns = dict(zip(names, values[:, :, None, None].unbind(1), strict=True))

    def __getitem__(self, name: str) -> Tensor:
        return self._columns[name]  # B×1×1

    def of(self, who: Tensor) -> Look:
        return Look(self.values[who], self.names)

    def above(self, name: str, threshold: float) -> Tensor:
        """Positions of those whose value exceeds the threshold: who wears glasses, who has a beard."""
        return (self._columns[name].flatten() > threshold).nonzero().flatten()

    def colour(self, name: str) -> Tensor:
        return torch.stack([self[f"{name}_{channel}"] for channel in ("red", "green", "blue")], dim=1)

    def along(self, palette: Tensor, name: str) -> Tensor:
        """The colour at a place in [0, 1] along a palette, B×3×1×1."""
        step = self[name].flatten() * (len(palette) - 1)
        lower = step.long().clamp_(max=len(palette) - 2)
        return torch.lerp(palette[lower], palette[lower + 1], (step - lower).unsqueeze(1))[:, :, None, None]

    def picked(self, palette: Tensor, name: str) -> Tensor:
        """One colour of a palette, B×3×1×1."""
        return palette[(self[name].flatten() * len(palette)).long().clamp_(max=len(palette) - 1), :, None, None]


@dataclass(frozen=True)
class Window:
    """Part of the pictures: pixels to paint on, and where each lies on the face."""

    pixels: Tensor  # B×3×h×w, a view
    x: Tensor  # B×h×w, to the right, 0 in the middle of the face
    y: Tensor  # B×h×w, down
    sharp: Tensor  # B×1×1, pixels per unit of length
    person: Tensor  # B×h×w, a view: how much of each pixel the person covers so far

    def cover(self, distance: Tensor) -> Tensor:
        """How much of each pixel a shape covers, given the distance to its border (which it overwrites)."""
        return distance.mul_(self.sharp).add_(0.5).clamp_(0, 1)

    def disc(self, x: Tensor, y: Tensor, width: Tensor, height: Tensor) -> Tensor:
        """How much of each pixel an ellipse covers.

        With q = (x/w)² + (y/h)², the distance is r(1 − q)/2 for the smaller radius r, so the cover is
        1/2 + k − kq with k = r·sharp/2; √k goes into the two scales.
        """
        k = self.sharp * torch.minimum(width, height) / 2
        root = k.sqrt()
        q = (x * (root / width)).square_()
        down = y * (root / height)
        return torch.sub(k + 0.5, q.addcmul_(down, down), out=q).clamp_(0, 1)

    def paint(self, cover: Tensor, colour: Tensor) -> None:
        self.pixels.lerp_(colour, cover.unsqueeze(1))

    def add(self, cover: Tensor, colour: Tensor) -> None:
        """Paint a part of the person that reaches beyond what is there."""
        self.paint(cover, colour)
        torch.maximum(self.person, cover, out=self.person)

    def part(self, rows: slice, columns: slice) -> Window:
        x, y, person = (plane[:, rows, columns] for plane in (self.x, self.y, self.person))
        return Window(self.pixels[:, :, rows, columns], x, y, self.sharp, person)

    def of(self, who: Tensor) -> Window:
        """A copy of some of the pictures."""
        return Window(self.pixels[who], self.x[who], self.y[who], self.sharp[who], self.person[who])
