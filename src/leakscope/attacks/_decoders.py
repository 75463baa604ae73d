"""Networks from released features to pictures: convolutional, fully connected at the front, residual."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from leakscope.core.errors import UsageError

Capacity = Literal["small", "medium", "large"]
Shape = tuple[int, ...]
ImageShape = tuple[int, int, int]

_WIDTHS: dict[str, int] = {"small": 16, "medium": 32, "large": 64}
_DEPTHS: dict[str, int] = {"small": 1, "medium": 2, "large": 3}
_HIDDEN: dict[str, int] = {"small": 512, "medium": 1024, "large": 2048}
_RESIDUAL: dict[str, tuple[int, int]] = {"small": (4, 32), "medium": (4, 64), "large": (8, 64)}
_ROW_HIDDEN: dict[str, int] = {"small": 100, "medium": 300, "large": 800}
_DENSE_WEIGHTS = 2**25  # elements of the largest fully connected layer
_GRID = 8  # side, at most, of the grid a fully connected layer writes


def token_grid(shape: Shape) -> tuple[int, int] | None:
    """For tokens T×D that tile a square, perhaps behind one class token: (class tokens, side)."""
    if len(shape) != 2 or shape[0] < 4:
        return None
    for extra in (0, 1):
        side = math.isqrt(shape[0] - extra)
        if side * side == shape[0] - extra:
            return extra, side
    return None


def map_shape(shape: Shape) -> tuple[int, int, int] | None:
    """Features as a C×h×w map, or None when they have no place in space."""
    grid = token_grid(shape)
    if grid is not None:
        return shape[1], grid[1], grid[1]
    if len(shape) == 3 and shape[1] * shape[2] > 1:
        return shape[0], shape[1], shape[2]
    return None


class AsMap(nn.Module):
    """Tokens N×T×D laid out as a map N×D×h×w; a map stays as it is."""

    def forward(self, z: Tensor) -> Tensor:
        grid = token_grid(tuple(z.shape[1:]))
        if grid is None:
            return z
        extra, side = grid
        laid_out: Tensor = z[:, extra:].mT.unflatten(2, (side, side))
        return laid_out


class Resize(nn.Module):
    """To the picture's size, when the doublings did not land on it."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = (height, width)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[2:]) == self.size:
            return x
        smaller = x.shape[2] >= self.size[0] and x.shape[3] >= self.size[1]
        if smaller:
            return nn.functional.adaptive_avg_pool2d(x, self.size)
        return nn.functional.interpolate(x, self.size, mode="bilinear", align_corners=False)


def doublings(small: int, large: int) -> int:
    """How often `small` doubles without passing `large` by more than half a doubling."""
    return max(0, round(math.log2(large / small)))


class Block(nn.Module):
    """x + conv(gelu(conv(gelu(x)))), starting as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        gelu = nn.functional.gelu
        change: Tensor = self.second(gelu(self.first(gelu(x))))
        return x + change


class Upward(nn.Module):
    """From a map at low resolution to a picture: blocks, then sub-pixel doublings, beside a linear path.

    The blocks start as the identity, so the linear path and the stem settle first, and the rest adds
    what an affine decoder cannot do.
    """

    def __init__(self, channels: int, side: tuple[int, int], image: ImageShape, width: int, depth: int) -> None:
        super().__init__()
        out, height, width_px = image
        times = max(doublings(side[0], height), doublings(side[1], width_px))
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        stages: list[nn.Module] = []
        for _ in range(max(times - 1, 0)):
            narrower = max(width // 2, 16)
            stages += [nn.GELU(), nn.Conv2d(width, 4 * narrower, 3, padding=1), nn.PixelShuffle(2), Block(narrower)]
            width = narrower
        factor = 2 if times else 1
        stages += [nn.GELU(), nn.Conv2d(width, factor * factor * out, 3, padding=1), nn.PixelShuffle(factor)]
        self.upward = nn.Sequential(*stages, Resize(height, width_px))
        self.linear: nn.Module | None = None
        if 4**times * out <= 1024:
            self.linear = nn.Sequential(
                nn.Conv2d(channels, 4**times * out, 3, padding=1), nn.PixelShuffle(2**times), Resize(height, width_px)
            )

    def forward(self, z: Tensor) -> Tensor:
        picture: Tensor = self.upward(self.blocks(self.stem(z)))
        return picture if self.linear is None else picture + self.linear(z)


class Dense(nn.Module):
    """A large fully connected layer, which can undo dense mixing, then a grid that grows to the picture."""

    def __init__(self, shape: Shape, image: ImageShape, capacity: Capacity) -> None:
        super().__init__()
        inputs = math.prod(shape)
        _, height, width_px = image
        times = max(0, math.ceil(math.log2(max(height, width_px) / _GRID)))
        side = (math.ceil(height / 2**times), math.ceil(width_px / 2**times))
        width = _WIDTHS[capacity]
        hidden = min(_HIDDEN[capacity], max(64, _DENSE_WEIGHTS // inputs))
        self.mix = nn.Linear(inputs, hidden)
        self.write = nn.Linear(hidden, width * side[0] * side[1])
        self.grid = (width, *side)
        self.upward = Upward(width, side, image, width, _DEPTHS[capacity])
        self.linear: nn.Linear | None = None
        if hidden * math.prod(image) <= _DENSE_WEIGHTS:
            self.linear = nn.Linear(hidden, math.prod(image))
        self.image = image

    def forward(self, z: Tensor) -> Tensor:
        mixed = self.mix(z.flatten(1))
        picture: Tensor = self.upward(self.write(nn.functional.gelu(mixed)).unflatten(1, self.grid))
        return picture if self.linear is None else picture + self.linear(mixed).unflatten(1, self.image)


class RowDecoder(nn.Module):
    """For maps whose rows were mixed along the width (C×H×W′): rows back to the picture's width, then convolutions.

    With capacity large it is the decoder of Dibbo et al., ECCV 2024: W′→800–relu–W–relu, then 5×5
    convolutions C→16–norm–relu, 16→16–norm–relu, 16→channels. There it was never trained.
    """

    def __init__(self, shape: tuple[int, int, int], image: ImageShape, capacity: Capacity) -> None:
        super().__init__()
        channels, _, mixed = shape
        hidden, width = _ROW_HIDDEN[capacity], 16
        self.rows = nn.Sequential(nn.Linear(mixed, hidden), nn.ReLU(), nn.Linear(hidden, image[2]), nn.ReLU())
        self.picture = nn.Sequential(
            nn.Conv2d(channels, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, image[0], 5, padding=2),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        picture: Tensor = self.picture(self.rows(z.contiguous()))
        return picture


class NormBlock(nn.Module):
    """R(i, o) of `res_norm`: twice (norm, relu, conv), and a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        return total


def res_norm(shape: tuple[int, int, int], image: ImageShape, blocks: int, width: int) -> nn.Sequential:
    """`res_normN{blocks}C{width}` of Xia et al., "CEM", 2025.

    R(c, C), relu; N×[R(C, C), relu]; one doubling by transposed convolution for each factor of two
    in size, at least two stages, missing doublings replaced by R(C, C); R(C, channels), sigmoid.
    """
    channels, height, _ = shape
    times = doublings(height, image[1])
    layers: list[nn.Module] = [AsMap(), NormBlock(channels, width), nn.ReLU()]
    for _ in range(blocks):
        layers += [NormBlock(width, width), nn.ReLU()]
    for _ in range(times):
        up = nn.ConvTranspose2d(width, width, 3, stride=2, padding=1, output_padding=1)
        layers += [up, nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(2 - times):
        layers += [NormBlock(width, width), nn.ReLU()]
    return nn.Sequential(*layers, NormBlock(width, image[0]), Resize(*image[1:]), nn.Sigmoid())


def _conv(shape: Shape, image: ImageShape, capacity: Capacity) -> nn.Module:
    channels, height, width = _map(shape, "conv")
    upward = Upward(channels, (height, width), image, _WIDTHS[capacity], _DEPTHS[capacity])
    return nn.Sequential(AsMap(), upward)


def _residual(shape: Shape, image: ImageShape, capacity: Capacity) -> nn.Module:
    blocks, width = _RESIDUAL[capacity]
    return res_norm(_map(shape, "residual"), image, blocks, width)


def _map(shape: Shape, front: str) -> tuple[int, int, int]:
    found = map_shape(shape)
    if found is None:
        raise UsageError(f"decoder front {front!r} needs a feature map, not {shape}; use front=auto or dense")
    return found


def unfit(front: str, shape: Shape, image: ImageShape) -> str | None:
    """Why a front cannot read features of this shape, with the remedy; None when it can."""
    if front in ("conv", "residual") and map_shape(shape) is None:
        return f"front {front!r} reads feature maps, not {'×'.join(map(str, shape))}; use front=auto or dense"
    if front == "rows" and (len(shape) != 3 or shape[1] != image[1]):
        return f"front 'rows' reads maps with the picture's rows, not {'×'.join(map(str, shape))}; use front=auto"
    return None


def _rows(shape: Shape, image: ImageShape, capacity: Capacity) -> nn.Module:
    if len(shape) != 3 or shape[1] != image[1]:
        raise UsageError(f"decoder front 'rows' needs a map with the picture's rows, not {shape}; use front=auto")
    return RowDecoder((shape[0], shape[1], shape[2]), image, capacity)


def _auto(shape: Shape, image: ImageShape, capacity: Capacity) -> nn.Module:
    found = map_shape(shape)
    if found is None:
        return Dense(shape, image, capacity)
    # As many rows as the picture but another width: a layer has mixed along the rows.
    mixed_rows = found[1] == image[1] and found[2] != image[2]
    return (_rows if mixed_rows else _conv)(shape, image, capacity)


FRONTS: dict[str, Callable[[Shape, ImageShape, Capacity], nn.Module]] = {
    "auto": _auto,
    "conv": _conv,
    "dense": Dense,
    "residual": _residual,
    "rows": _rows,
}


class Decoder(nn.Module):
    """Features are standardised per channel; what `body` says is scaled to [low, high].

    While training, values beyond the range pass at a fiftieth of their excess: black background
    costs nothing once it is black, and its gradient never dies.
    """

    mean: Tensor
    deviation: Tensor
    bounds: Tensor

    def __init__(self, body: nn.Module, mean: Tensor, deviation: Tensor, bounds: Tensor) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.register_buffer("bounds", bounds)

    def forward(self, z: Tensor) -> Tensor:
        low, high = self.bounds
        z = (z - self.mean) / self.deviation
        if z.ndim == 4:
            z = z.contiguous(memory_format=torch.channels_last)  # convolutions on a CPU run a third faster
        x: Tensor = low + (high - low) * self.body(z)
        inside = x.clamp(low, high)
        return inside + 0.02 * (x - inside) if self.training else inside
