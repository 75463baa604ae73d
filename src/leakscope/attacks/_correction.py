"""The network behind `auto`: a linear picture, and a correction that begins at zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks._decoders import AsMap, Block, ImageShape, Resize, Shape, doublings, map_shape
from leakscope.core import seeds

_HIDDEN_WEIGHTS = 2**23  # of the largest fully connected layer
_ROW_HIDDEN = 100  # between a row of features and a row of the picture
_QUARTER = 4  # a vector is written on a grid of a quarter of the picture's side


@dataclass(frozen=True)
class Size:
    """How large a correction is; `dense` reads features as one vector, whatever their shape."""

    width: int = 64
    depth: int = 2
    dense: bool = False

    def build(self, shape: Shape, image: ImageShape, seed: int) -> Correction:
        with seeds.ambient(seed, "correction"):
            network = Correction(shape, image, self)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def mixes_rows(shape: Shape, image: ImageShape) -> bool:
    """Whether features are a map with the picture's rows but another width: a layer has mixed along the rows."""
    return len(shape) == 3 and shape[1] == image[1] and shape[2] != image[2]


def keeps_places(shape: Shape, image: ImageShape) -> bool:
    """Whether features are a map that shrinks the picture alike in both directions."""
    found = map_shape(shape)
    if found is None:
        return False
    return abs(math.log2(image[1] / found[1]) - math.log2(image[2] / found[2])) < 0.5 and found[1] <= 2 * image[1]


class Correction(nn.Module):
    """(features, linear picture) ↦ what to add to the linear picture, in units of its error.

    All convolutions run on the features' own grid, where the linear picture lies folded into channels; the
    last one starts at zero, so that training begins exactly where the linear fit ended.
    """

    def __init__(self, shape: Shape, image: ImageShape, size: Size) -> None:
        super().__init__()
        channels, height, width_px = image
        found = None if size.dense or not keeps_places(shape, image) else map_shape(shape)
        width, side = size.width, 3
        if mixes_rows(shape, image):
            # A shared map along the rows leaves the picture's own grid, where wide filters pay and channels do not.
            inside, grid, times, width, side = shape[0], (height, width_px), 0, max(16, width // 2), 5
            self.spread: nn.Module = nn.Sequential(
                nn.Linear(shape[2], _ROW_HIDDEN), nn.GELU(), nn.Linear(_ROW_HIDDEN, width_px)
            )
        elif found is None:
            times = doublings(1, _QUARTER) if min(height, width_px) > _QUARTER else 0
            grid = (math.ceil(height / 2**times), math.ceil(width_px / 2**times))
            inputs, inside = math.prod(shape), max(16, size.width // 2)
            hidden = min(1024, max(64, _HIDDEN_WEIGHTS // max(inputs, inside * grid[0] * grid[1])))
            self.spread = nn.Sequential(
                nn.Flatten(), nn.Linear(inputs, hidden), nn.GELU(),
                nn.Linear(hidden, inside * grid[0] * grid[1]), nn.Unflatten(1, (inside, *grid)),
            )  # fmt: skip
        else:
            inside, grid = found[0], found[1:]
            times = max(doublings(grid[0], height), doublings(grid[1], width_px))
            self.spread = AsMap()
        self.fold = 2**times
        self.folded = (grid[0] * self.fold, grid[1] * self.fold)
        self.stem = nn.Conv2d(inside + channels * self.fold**2, width, side, padding=side // 2)
        if side == 5:
            between: list[nn.Module] = [nn.GELU(), nn.Conv2d(width, width, side, padding=side // 2)]
            self.blocks = nn.Sequential(*between, *[Block(width) for _ in range(size.depth - 1)])
        else:
            self.blocks = nn.Sequential(*[Block(width) for _ in range(size.depth)])
        steps: list[nn.Module] = []
        for _ in range(max(times - 1, 0)):
            narrower = max(width // 2, 16)
            steps += [nn.GELU(), nn.Conv2d(width, 4 * narrower, 3, padding=1), nn.PixelShuffle(2), Block(narrower)]
            width = narrower
        last = nn.Conv2d(width, channels * (4 if times else 1), side, padding=side // 2)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        self.upward = nn.Sequential(
            *steps, nn.GELU(), last, nn.PixelShuffle(2 if times else 1), Resize(height, width_px)
        )

    @property
    def last(self) -> nn.Conv2d:
        """The layer that starts at zero."""
        return next(layer for layer in reversed(self.upward) if isinstance(layer, nn.Conv2d))

    def forward(self, z: Tensor, linear: Tensor) -> Tensor:
        picture = linear
        if tuple(linear.shape[2:]) != self.folded:
            picture = F.interpolate(linear, self.folded, mode="bilinear", align_corners=False)
        laid_out = torch.cat((self.spread(z), F.pixel_unshuffle(picture, self.fold)), 1)
        change: Tensor = self.upward(self.blocks(self.stem(laid_out.contiguous(memory_format=torch.channels_last))))
        return change


def bounded(x: Tensor, low: float, high: float, *, training: bool) -> Tensor:
    """Clamped to the range of pixels; while training a fiftieth of the excess passes, so that no gradient dies."""
    inside = x.clamp(low, high)
    return inside + 0.02 * (x - inside) if training else inside
