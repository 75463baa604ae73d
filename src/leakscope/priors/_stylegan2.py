"""StyleGAN2's synthesis network with the published names of its tensors, in plain PyTorch.

Each layer's arithmetic is in `_modulation`. The network is built from the tensors of a file: their
names say which sizes there are, their shapes how wide each is.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.priors._modulation import (
    GAIN,
    SLOPE,
    ScaledLinear,
    binomial,
    modulated,
    modulated_up,
    upsampled,
)

_BLOCK = re.compile(r"synthesis\.b(\d+)\.torgb\.weight")
CLAMP = 256.0  # of every activation, as published for half precision


class Layer(nn.Module):
    """Modulated 3×3 convolution (of twice the size when `up`), fixed noise, bias, rectifier."""

    noise_const: Tensor
    resample_filter: Tensor

    def __init__(self, inputs: int, outputs: int, style: int, size: int, *, up: bool) -> None:
        super().__init__()
        self.up = up
        self.affine = ScaledLinear(style, inputs, bias=1.0)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.noise_strength = nn.Parameter(torch.zeros(()))
        self.register_buffer("noise_const", torch.randn(size, size))
        self.register_buffer("resample_filter", binomial())

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        style = self.affine(w)
        if self.up:
            x = modulated_up(x, self.weight, style, self.resample_filter)
        else:
            x = modulated(x, self.weight, style, padding=1)
        x = x + self.noise_const * self.noise_strength + self.bias.view(-1, 1, 1)
        return (F.leaky_relu(x, SLOPE) * GAIN).clamp(-CLAMP, CLAMP)


class ToRgb(nn.Module):
    """Modulated 1×1 convolution to colours, without scaling to unit norm."""

    def __init__(self, inputs: int, channels: int, style: int) -> None:
        super().__init__()
        self.affine = ScaledLinear(style, inputs, bias=1.0)
        self.weight = nn.Parameter(torch.randn(channels, inputs, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.scale = 1 / math.sqrt(inputs)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        y = modulated(x, self.weight, self.affine(w) * self.scale, demodulate=False)
        return (y + self.bias.view(-1, 1, 1)).clamp(-CLAMP, CLAMP)


class Block(nn.Module):
    """One size: a doubling layer (not in the first block), a layer, colours added to the doubled picture so far."""

    resample_filter: Tensor

    def __init__(self, inputs: int, outputs: int, channels: int, style: int, size: int) -> None:
        super().__init__()
        self.first = inputs == 0
        if self.first:
            self.const = nn.Parameter(torch.randn(outputs, size, size))
        else:
            self.conv0 = Layer(inputs, outputs, style, size, up=True)
        self.conv1 = Layer(outputs, outputs, style, size, up=False)
        self.torgb = ToRgb(outputs, channels, style)
        self.register_buffer("resample_filter", binomial())

    def forward(self, x: Tensor | None, image: Tensor | None, styles: Tensor) -> tuple[Tensor, Tensor]:
        if x is None or image is None:
            x = self.conv1(self.const.expand(len(styles), -1, -1, -1), styles[:, 0])
            return x, self.torgb(x, styles[:, 1])
        x = self.conv1(self.conv0(x, styles[:, 0]), styles[:, 1])
        return x, upsampled(image, self.resample_filter) + self.torgb(x, styles[:, 2])


class Synthesis2(nn.Module):
    """All blocks; colours of a block read the same style as the first layer of the next."""

    def __init__(self, widths: dict[int, int], channels: int, style: int) -> None:
        super().__init__()
        self.sizes = sorted(widths)
        self.layers = 2 * len(self.sizes)
        inputs = 0
        for size in self.sizes:
            self.add_module(f"b{size}", Block(inputs, widths[size], channels, style, size))
            inputs = widths[size]

    def forward(self, styles: Tensor) -> Tensor:
        x: Tensor | None = None
        image: Tensor | None = None
        first = 0
        for size in self.sizes:
            block = self.get_submodule(f"b{size}")
            x, image = block(x, image, styles[:, first : first + 3])
            first += 1 if size == self.sizes[0] else 2
        assert image is not None
        return image


def synthesis2(tensors: dict[str, Tensor]) -> tuple[Synthesis2, tuple[int, int, int]] | None:
    """The network that these tensors belong to, still without their values, and its pictures' shape.

    None when the names are not those of such a network.
    """
    blocks = {int(match[1]): tensors[name] for name in tensors if (match := _BLOCK.fullmatch(name))}
    sizes = sorted(blocks)
    affine = tensors.get("synthesis.b4.torgb.affine.weight")
    if (
        not 2 <= len(sizes) <= 11
        or sizes != [4 << rung for rung in range(len(sizes))]
        or affine is None
        or affine.ndim != 2
    ):
        return None
    if any(weight.ndim != 4 for weight in blocks.values()):
        return None
    channels, widths = len(blocks[4]), {size: weight.shape[1] for size, weight in blocks.items()}
    return Synthesis2(widths, channels, affine.shape[1]), (channels, sizes[-1], sizes[-1])
