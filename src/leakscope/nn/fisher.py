"""Fisher information of a picture in noisy features of it, from derivatives of the encoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Pictures N×C×H×W to features N×…, one row not depending on another, the same every time.
Encode = Callable[[Tensor], Tensor]

_POINTS = 16  # on the way from one picture to another
#: Above this share of change that no derivative explains, features jump.
JUMPS = 0.2


def fisher_traces(encode: Encode, images: Tensor, probes: int, rng: torch.Generator) -> Tensor:
    """Tr(JᵀJ) with J = ∂E/∂x, one number per picture: the trace of the Fisher information of E(x) + N(0, I).

    Exact, a row of J at a time, when there are no more features than `probes`; else Hutchinson's estimate
    E‖Jᵀv‖² over random signs v, which has no bias.

    Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1990.
    """
    x = images.detach().requires_grad_(True)
    with torch.enable_grad():
        z = encode(x).flatten(1)
    if not z.requires_grad:
        return torch.zeros(len(x), dtype=x.dtype, device=x.device)
    count = z.shape[1]
    exact = count <= probes
    total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for number in range(count if exact else probes):
        if exact:
            v = torch.zeros_like(z)
            v[:, number] = 1
        else:
            v = _signs(z, rng)
        (gradient,) = torch.autograd.grad(z, x, v, retain_graph=True)
        total += gradient.flatten(1).square().sum(1)
    return total if exact else total / probes


def unexplained(encode: Encode, first: Tensor, second: Tensor, rng: torch.Generator) -> float:
    """The share of what changes in features between pictures that the derivative on the way does not explain.

        ⟨v, E(b) − E(a)⟩ = ∫₀¹ ⟨∇_x⟨v, E⟩, b − a⟩ dt   on the straight line from a to b

    holds for an encoder without jumps. One that rounds has a derivative of zero and still tells everything:
    bounds by Fisher information do not hold for it.
    """
    with torch.no_grad():
        change = encode(second).flatten(1) - encode(first).flatten(1)
    v = _signs(change, rng)
    told = (v * change).sum(1)
    way = second - first
    summed = torch.zeros_like(told)
    for number in range(_POINTS):
        x = (first + (number + 0.5) / _POINTS * way).detach().requires_grad_(True)
        with torch.enable_grad():
            z = encode(x).flatten(1)
        if z.requires_grad:
            (gradient,) = torch.autograd.grad(z, x, v)
            summed += (gradient * way).flatten(1).sum(1) / _POINTS
    whole = float(told.square().sum())
    return float((told - summed).square().sum()) / whole if whole > 0 else 0.0


def _signs(like: Tensor, rng: torch.Generator) -> Tensor:
    drawn = torch.randint(2, like.shape, generator=rng, device=rng.device)
    return (2 * drawn - 1).to(like)
