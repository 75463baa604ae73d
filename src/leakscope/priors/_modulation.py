"""Layers of style generators: scaled linear maps, modulated convolutions, filtered resampling."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SLOPE = 0.2  # of the leaky rectifier everywhere in these networks
GAIN = math.sqrt(2)  # restores the variance that the rectifier takes


class ScaledLinear(nn.Module):
    """y = x·(Wc)ᵀ + b·rate with c = rate/√inputs: all weights are stored at the same scale, and learn as one."""

    def __init__(self, inputs: int, outputs: int, *, bias: float = 0.0, rate: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / rate)
        self.bias = nn.Parameter(torch.full((outputs,), bias / rate))
        self.scale, self.rate = rate / math.sqrt(inputs), rate

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.scale, self.bias * self.rate)


def normalized(z: Tensor) -> Tensor:
    """z divided by the root of its mean square."""
    return z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()


def activated(x: Tensor) -> Tensor:
    """√2·LeakyReLU(x)."""
    return F.leaky_relu(x, SLOPE) * GAIN


def demodulation(weight: Tensor, style: Tensor) -> Tensor:
    """1/‖w_o ⊙ s‖₂ for each sample and output channel o, N×O, from O×I×k×k weights and N×I styles."""
    return (style.square() @ weight.square().sum((2, 3)).T + 1e-8).rsqrt()


def modulated(x: Tensor, weight: Tensor, style: Tensor, *, demodulate: bool = True, padding: int = 0) -> Tensor:
    """Convolve each sample with its own weights w_oi·s_i, scaled to unit norm for each output.

    Convolution is linear in its channels, so scaling weights is scaling input and output channels:
    one convolution serves the whole batch, where the published code makes a grouped one.
    """
    y = F.conv2d(x * style[:, :, None, None], weight, padding=padding)
    return y * demodulation(weight, style)[:, :, None, None] if demodulate else y


def modulated_up(x: Tensor, weight: Tensor, style: Tensor, taps: Tensor) -> Tensor:
    """A modulated 3×3 convolution of twice the size: zeros between pixels, convolve, low-pass filter.

    True convolution, as published (the kernel is flipped, unlike in `conv2d`); a transposed
    convolution is exactly that.
    """
    y = F.conv_transpose2d(x * style[:, :, None, None], weight.transpose(0, 1), stride=2)
    y = filtered(y, taps * 4, padding=(1, 1))
    return y * demodulation(weight, style)[:, :, None, None]


def filtered(x: Tensor, taps: Tensor, *, up: int = 1, down: int = 1, padding: tuple[int, int] = (0, 0)) -> Tensor:
    """Put up − 1 zeros behind every pixel, pad (or crop, when negative), convolve with `taps`, keep every down-th.

    `taps` is a square filter or one row of a separable one; the same filter serves each channel.
    """
    n, channels, height, width = x.shape
    if up > 1:
        x = F.pad(x.reshape(n, channels, height, 1, width, 1), (0, up - 1, 0, 0, 0, up - 1))
        x = x.reshape(n, channels, height * up, width * up)
    x = F.pad(x, (*padding, *padding))
    kernel = taps.flip(tuple(range(taps.ndim))).to(x.dtype)
    if kernel.ndim == 1:
        across = kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
        x = F.conv2d(x, across, groups=channels, stride=(1, down))
        return F.conv2d(x, across.transpose(2, 3), groups=channels, stride=(down, 1))
    return F.conv2d(x, kernel.expand(channels, 1, *kernel.shape), groups=channels, stride=down)


def upsampled(x: Tensor, taps: Tensor) -> Tensor:
    """Twice the size through a 4×4 low-pass filter."""
    return filtered(x, taps * 4, up=2, padding=(2, 1))


def binomial() -> Tensor:
    """The 4×4 filter of StyleGAN2: the outer product of (1, 3, 3, 1)/8 with itself."""
    row = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
    return torch.outer(row, row)
