"""Random views of pictures: crops, shifts and mirror images, differentiable, drawn for each picture on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NUMBERS = 5  # uniform numbers behind a view


@dataclass(frozen=True)
class Views:
    """A crop of a random share of the area, at a random place and ratio of sides, back at full size.

    The ratio is uniform in its logarithm; `mirrored` is the chance of a mirror image. `shift` moves the place further,
    by up to that share of the side, over the border if need be, where the outermost pixels go on.
    """

    area: tuple[float, float]
    ratio: tuple[float, float] = (1.0, 1.0)
    mirrored: float = 0.0
    shift: float = 0.0

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """`uniform` is N×5 in [0, 1)."""
        if self.area == (1.0, 1.0) and self.ratio == (1.0, 1.0) and self.mirrored == self.shift == 0:
            return images
        area = self.area[0] + (self.area[1] - self.area[0]) * uniform[:, 0]
        low, high = (math.log(side) for side in self.ratio)
        ratio = torch.exp(low + (high - low) * uniform[:, 1])
        width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
        # The grid goes from −1 to 1: a share of the side is twice as much of it.
        x = (1 - width + 2 * self.shift) * (2 * uniform[:, 2] - 1)
        y = (1 - height + 2 * self.shift) * (2 * uniform[:, 3] - 1)
        width = torch.where(uniform[:, 4] < self.mirrored, -width, width)
        nothing = torch.zeros_like(width)
        rows = torch.stack([width, nothing, x]), torch.stack([nothing, height, y])
        maps = torch.stack(rows).permute(2, 0, 1).to(images)
        grid = F.affine_grid(maps, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
