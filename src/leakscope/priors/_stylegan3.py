"""StyleGAN3's synthesis network with the published names of its tensors, in plain PyTorch.

A signal of N layers is kept band-limited: layer i has cut-off f_i, stop band t_i and sampling rate s_i,

    f_i = 2·(f_N/2)^e_i,  t_i = t_0·(t_N/t_0)^e_i,  e_i = min(i/(N − 2), 1),  f_N = size/2,  t_N = 2^0.3·f_N,
    s_i = 2^⌈log₂ min(2t_i, size)⌉,  t_0 = 2^2.1,

and every rectifier acts on a twice finer grid between two low-pass filters, which the file holds.
Configurations T (3×3 convolutions) and R (1×1, radial filters) differ only in the shapes of tensors.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.priors._modulation import GAIN, SLOPE, ScaledLinear, filtered, modulated

_LAYER = re.compile(r"synthesis\.(L(\d+)_(\d+)_(\d+))\.weight")
_MARGIN = 10  # pixels around the picture that layers see
_CRITICAL = 2  # layers at the end that use the whole band
_CLAMP = 256.0
_OUTPUT = 0.25
LARGEST = 4096  # pixels a side that a name may claim


@dataclass(frozen=True)
class Signal:
    """What the output of a layer is sampled at."""

    rate: int
    cutoff: float
    size: int


def signals(layers: int, size: int) -> list[Signal]:
    """Of the input (0) and of each layer; the last is the picture."""
    found = []
    for number in range(layers + 1):
        exponent = min(number / (layers - _CRITICAL), 1.0)
        cutoff = 2 * (size / 4) ** exponent
        stop = 2**2.1 * (size / 2 * 2**0.3 / 2**2.1) ** exponent
        rate = 2 ** math.ceil(math.log2(min(2 * stop, size)))
        found.append(Signal(rate, cutoff, size if number >= layers - 1 else rate + 2 * _MARGIN))
    return found


class Waves(nn.Module):
    """Sines of random frequencies and phases, turned and shifted by the first style."""

    freqs: Tensor
    phases: Tensor
    transform: Tensor

    def __init__(self, channels: int, style: int, signal: Signal) -> None:
        super().__init__()
        self.signal = signal
        self.affine = ScaledLinear(style, 4)
        self.weight = nn.Parameter(torch.randn(channels, channels))
        self.register_buffer("freqs", torch.randn(channels, 2))
        self.register_buffer("phases", torch.rand(channels) - 0.5)
        self.register_buffer("transform", torch.eye(3))

    def forward(self, w: Tensor) -> Tensor:
        turn = self.affine(w)
        cosine, sine, right, down = (turn / turn[:, :2].norm(dim=1, keepdim=True)).unbind(1)
        # Rotation times translation, without its last row (0, 0, 1).
        top = torch.stack([cosine, -sine, sine * down - cosine * right], 1)
        bottom = torch.stack([sine, cosine, -sine * right - cosine * down], 1)
        moves = torch.stack([top, bottom], 1) @ self.transform  # N×2×3
        phases = self.phases + torch.einsum("cd,nd->nc", self.freqs, moves[:, :, 2])
        freqs = torch.einsum("cd,nde->nce", self.freqs, moves[:, :, :2])
        band, rate, size = self.signal.cutoff, self.signal.rate, self.signal.size
        strength = (1 - (freqs.norm(dim=2) - band) / (rate / 2 - band)).clamp(0, 1)
        # Pixel centres in units of the picture, whose own pixels span [−½, ½].
        axis = (torch.arange(size, device=w.device) - (size - 1) / 2) / rate
        x = torch.einsum("w,nc->nwc", axis, freqs[:, :, 0])[:, None]
        y = torch.einsum("h,nc->nhc", axis, freqs[:, :, 1])[:, :, None]
        waves = torch.sin((x + y + phases[:, None, None]) * (2 * math.pi)) * strength[:, None, None]
        mixed: Tensor = waves @ (self.weight / math.sqrt(len(self.weight))).T
        return mixed.permute(0, 3, 1, 2)


class Layer3(nn.Module):
    """Modulated convolution, then: bias, up, rectifier, down, each through its low-pass filter."""

    up_filter: Tensor | None
    down_filter: Tensor | None
    magnitude_ema: Tensor

    def __init__(
        self, weight: Tensor, style: int, before: Signal, after: Signal, filters: tuple[Tensor | None, Tensor | None],
        *, last: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        outputs, inputs, self.kernel = weight.shape[0], weight.shape[1], weight.shape[2]
        self.last = last
        self.affine = ScaledLinear(style, inputs, bias=1.0)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, self.kernel, self.kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("magnitude_ema", torch.ones(()))
        fine = max(before.rate, after.rate) * (1 if last else 2)
        self.up, self.down = fine // before.rate, fine // after.rate
        taps = 0
        for name, taken in zip(("up_filter", "down_filter"), filters, strict=True):
            self.register_buffer(name, None if taken is None else torch.zeros_like(taken))
            taps += 1 if taken is None else len(taken)
        total = (after.size - 1) * self.down + 1 - (before.size + self.kernel - 1) * self.up + taps - 2
        low = (total + self.up) // 2  # pixels are areas, not points: half a step is shifted
        self.padding = (low, total - low)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        style = self.affine(w)
        weight: Tensor = self.weight
        if self.last:
            style = style / math.sqrt(weight.shape[1] * self.kernel**2)
        else:
            # Cancelled by the demodulation, but for its ε; the style's is taken for each sample, not over the batch.
            weight = weight * weight.square().mean((1, 2, 3), keepdim=True).rsqrt()
            style = style * style.square().mean(1, keepdim=True).rsqrt()
        x = modulated(x, weight, style, demodulate=not self.last, padding=self.kernel - 1)
        x = x * self.magnitude_ema.rsqrt() + self.bias.view(-1, 1, 1)
        if self.up_filter is None:
            x = F.pad(x, self.padding * 2)
        else:
            # Zeros between pixels take up² of the signal; a separable filter is applied twice, so up each time.
            gain = self.up**self.up_filter.ndim
            x = filtered(x, self.up_filter * gain, up=self.up, padding=self.padding)
        x = (x if self.last else F.leaky_relu(x, SLOPE) * GAIN).clamp(-_CLAMP, _CLAMP)
        return x if self.down_filter is None else filtered(x, self.down_filter, down=self.down)


class Synthesis3(nn.Module):
    """Waves, then all layers in order; each reads its own style."""

    def __init__(self, tensors: dict[str, Tensor], names: list[str], style: int, size: int) -> None:
        super().__init__()
        self.names = names
        self.layers = len(names) + 1
        grid = signals(len(names) - 1, size)
        self.input = Waves(tensors[f"synthesis.{names[0]}.weight"].shape[1], style, grid[0])
        for number, name in enumerate(names):
            prefix = f"synthesis.{name}."
            filters = tensors.get(prefix + "up_filter"), tensors.get(prefix + "down_filter")
            before, after = grid[max(number - 1, 0)], grid[number]
            last = number == len(names) - 1
            self.add_module(name, Layer3(tensors[prefix + "weight"], style, before, after, filters, last=last))

    def forward(self, styles: Tensor) -> Tensor:
        x: Tensor = self.input(styles[:, 0])
        for number, name in enumerate(self.names):
            x = self.get_submodule(name)(x, styles[:, number + 1])
        return _OUTPUT * x


def synthesis3(tensors: dict[str, Tensor]) -> tuple[Synthesis3, tuple[int, int, int]] | None:
    """The network that these tensors belong to, still without their values, and its pictures' shape.

    None when the names are not those of such a network.
    """
    found = sorted((match for name in tensors if (match := _LAYER.fullmatch(name))), key=lambda match: int(match[2]))
    affine = tensors.get("synthesis.input.affine.weight")
    if len(found) <= _CRITICAL + 1 or [int(match[2]) for match in found] != list(range(len(found))):
        return None
    if affine is None or affine.ndim != 2 or any(tensors[match[0]].ndim != 4 for match in found):
        return None
    size, channels = int(found[-1][3]), int(found[-1][4])
    if size < 16 or size > LARGEST:
        return None
    grid = signals(len(found) - 1, size)
    if [int(match[3]) for match in found] != [signal.size for signal in grid]:
        return None
    network = Synthesis3(tensors, [match[1] for match in found], affine.shape[1], size)
    return network, (channels, size, size)
