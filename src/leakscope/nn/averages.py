"""Running averages of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, beta: float) -> None:
    """θ̄ ← βθ̄ + (1 − β)θ for weights, θ̄ ← θ for buffers."""
    old: list[Tensor] = list(average.parameters())
    new: list[Tensor] = list(network.parameters())
    torch._foreach_lerp_(old, new, 1 - beta)
    for kept, current in zip(average.buffers(), network.buffers(), strict=True):
        kept.copy_(current)


def warmed_up(decay: float, step: int) -> float:
    """β_t = min(decay, (1 + t)/(10 + t)) at step t = 0, 1, …: it grows to `decay`, so that the start is forgotten."""
    return min(decay, (1 + step) / (10 + step))
