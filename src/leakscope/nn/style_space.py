"""The P space of style generators, in which the coordinates of common styles look Gaussian."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.prior import Generator


def to_p(generator: Generator, w: Tensor) -> Tensor:
    """The P space: undoes the mapping network's last leaky rectifier (Zhu et al., 2020)."""
    return F.leaky_relu(w, 1 / generator.slope)


def from_p(generator: Generator, p: Tensor) -> Tensor:
    return F.leaky_relu(p, generator.slope)


@torch.no_grad()
def style_bounds(
    generator: Generator,
    count: int,
    rng: torch.Generator,
    *,
    deviations: float = 1.0,
    truncation: float = 1.0,
    batch: int = 4096,
) -> tuple[Tensor, Tensor, Tensor]:
    """Low and high w of a box around common styles, and the deviation σ of each coordinate of P.

    The box is mean ± `deviations`·σ in P, brought back to W (MIRROR); the map is monotone, so a box
    stays a box. `count` latents are drawn.
    """
    sizes = [min(batch, count - start) for start in range(0, count, batch)]
    p = torch.cat([to_p(generator, generator.to_style(generator.sample(size, rng), truncation)) for size in sizes])
    mean, spread = p.mean(0), p.std(0)
    low, high = (from_p(generator, mean + sign * deviations * spread) for sign in (-1, 1))
    return low, high, spread
