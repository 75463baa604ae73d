"""Orthogonal steps: the optimiser of filters that are trained for a short while."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_ROUNDS = 5
_FASTEST = (3.4445, -4.7750, 2.0315)  # of the quintic that lifts small singular values soonest, as published


def orthogonal(matrix: Tensor) -> Tensor:
    """Close to U Vᵀ for a matrix U S Vᵀ: its singular values come to lie between about 0.7 and 1.2.

    Each round takes X to aX + b(XXᵀ)X + c(XXᵀ)²X, which acts on singular values alone; products are made on the
    shorter side.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp_min(1e-12)
    a, b, c = _FASTEST
    for _ in range(_ROUNDS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class OrthogonalSteps(torch.optim.Optimizer):
    """Momentum whose every direction is made equally long, filters by input numbers, before it is taken.

    A few directions dominate the gradient of a layer, and Adam, which scales numbers one by one, follows them; the
    rare ones are what a picture's detail is made of. The correction of `auto` came as far as with Adam in two fifths of
    the time, and farther after as long (`benchmarks/orthogonal.py`).

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
    Differs from it: single precision, and no weight decay. `torch.optim.Muon` takes no filters.
    """

    def __init__(self, weights: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum: Tensor = state["momentum"].lerp_(weight.grad, 1 - _MOMENTUM)
                ahead = weight.grad.lerp(momentum, _MOMENTUM).flatten(1)
                longer = max(1.0, ahead.shape[0] / ahead.shape[1]) ** 0.5
                weight.sub_(orthogonal(ahead).view(weight.shape), alpha=group["lr"] * longer)
