"""Normalising flows, many at once: one for each class and style layer, none of which sees another.

Each flow maps base noise ε ~ N(0, I) to a latent z by `levels` levels of `couplings` steps. A step is an
affine map of each coordinate (actnorm), a fixed random permutation, and an additive coupling,

    y ← s⊙x + b,   y ← y[permutation],   (y₁, y₂) ← (y₁, y₂ + m(y₁)),

m a network with two hidden layers and ELU. After each level half of the coordinates leave. Only actnorm
changes volume, so log q(z) = log N(ε; 0, I) − Σ log|s|, the same for all ε.

Kingma & Dhariwal, "Glow", 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.devices import widened

_INITIAL_SAMPLES = 100  # behind the first actnorm

#: Draws normal numbers, flows×shape: each flow from its own generator.
Normal = Callable[..., Tensor]


@dataclass
class _Coupling:
    """One step of all flows: tensors have a leading dimension of flows."""

    log_scale: Tensor  # F×1×d
    shift: Tensor  # F×1×d
    order: Tensor  # F×1×d, int64
    weights: list[Tensor]  # F×in×out
    biases: list[Tensor]  # F×1×out

    @property
    def trained(self) -> list[Tensor]:
        return [self.log_scale, self.shift, *self.weights, *self.biases]

    def __call__(self, x: Tensor) -> Tensor:
        x = self.log_scale.exp() * x + self.shift
        x = x.gather(2, self.order.expand(-1, x.shape[1], -1))
        half = x.shape[2] // 2
        kept, moved = x[..., :half], x[..., half:]
        h = kept
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, F.elu(h) if number else h, weight)
        return torch.cat([kept, moved + h], 2)


class Flows:
    """`count` flows of `width` numbers, in double precision."""

    def __init__(self, width: int, *, couplings: int, levels: int, hidden: int, normal: Normal) -> None:
        self.width = width
        self.levels: list[list[_Coupling]] = []
        size = width
        for _ in range(levels):
            if size < 2:
                break
            self.levels.append([_fresh(size, hidden, normal) for _ in range(couplings)])
            size -= size // 2
        self._normalise(widened(normal(_INITIAL_SAMPLES, width)))

    @staticmethod
    def drawn(width: int, *, couplings: int, levels: int, hidden: int) -> list[tuple[int, ...]]:
        """What a new one asks `normal` for, in order."""
        shapes: list[tuple[int, ...]] = []
        size = width
        for _ in range(levels):
            if size < 2:
                break
            shapes += [(size // 2, hidden), (hidden, hidden), (1, size)] * couplings
            size -= size // 2
        return [*shapes, (_INITIAL_SAMPLES, width)]

    @property
    def trained(self) -> list[Tensor]:
        return [tensor for level in self.levels for step in level for tensor in step.trained]

    def __call__(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Latents F×N×width of base noise, and log|det| of each flow."""
        x, gone = widened(noise), []
        volume = x.new_zeros(len(x))
        for number, level in enumerate(self.levels):
            if number:
                left = x.shape[2] // 2
                gone.append(x[..., :left])
                x = x[..., left:]
            for step in level:
                x = step(x)
                volume = volume + step.log_scale.sum((1, 2))
        return torch.cat([*gone, x], 2), volume

    @torch.no_grad()
    def _normalise(self, x: Tensor) -> None:
        """Actnorm begins by giving every coordinate mean 0 and deviation 1 on a first batch."""
        for number, level in enumerate(self.levels):
            x = x[..., x.shape[2] // 2 :] if number else x
            for step in level:
                deviation = x.std(1, keepdim=True).clamp_min(1e-6)
                step.log_scale.copy_(-deviation.log())
                step.shift.copy_(-x.mean(1, keepdim=True) / deviation)
                x = step(x)


def _fresh(size: int, hidden: int, normal: Normal) -> _Coupling:
    """A step that begins as the identity up to its permutation: the last layer of m is zero."""
    kept, moved = size // 2, size - size // 2
    first = widened(normal(kept, hidden)) / kept**0.5
    middle = widened(normal(hidden, hidden)) / hidden**0.5
    flows, like = len(first), first
    order = widened(normal(1, size)).argsort(2)  # normal numbers have no ties: a uniform permutation
    return _Coupling(
        like.new_zeros(flows, 1, size),
        like.new_zeros(flows, 1, size),
        order,
        [first, middle, like.new_zeros(flows, hidden, moved)],
        [like.new_zeros(flows, 1, hidden), like.new_zeros(flows, 1, hidden), like.new_zeros(flows, 1, moved)],
    )


def divergence(noise: Tensor, latents: Tensor, volume: Tensor) -> Tensor:
    """KL(q ‖ N(0, I)) of each flow, estimated on its batch: log q(z) − log N(z), F×N×d to F.

    Exact where z is an affine map of a batch that covers the noise well; unbiased always.
    """
    return (latents.square().sum(2) - widened(noise).square().sum(2)).mean(1) / 2 - volume
