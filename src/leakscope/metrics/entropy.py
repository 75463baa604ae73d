"""What no attacker can do better than, from how many nats a noisy release tells about a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.devices import widened

#: A class needs this many pictures before its variances say anything.
FEWEST = 10
#: Features up to which a rotation is fitted; beyond, variances are those of the features themselves.
_WIDEST = 1024
#: Standard errors by which estimates are moved towards the cautious side.
_CAUTION = 3.0
#: Variance of rounding a pixel to 8 bits: no picture file knows more.
ROUNDING = 1 / (12 * 255**2)


@dataclass(frozen=True)
class ErrorBound:
    """A lower bound on the mean squared error of any attack that sees one noisy release, and what is behind it.

    `entropy` is exp(2·H(x|z̃)/d)/(2πe); `rate` is the same information spent where it lowers the error most
    (Shannon's rate–distortion function of a Gaussian), which is never below it. `blind` is the error of the
    mean picture; `nats` bounds what one release tells.
    """

    entropy: float
    rate: float
    blind: float
    nats: float
    dimensions: int


def information_bound(fit: Tensor, fit_groups: Tensor, features: Tensor, groups: Tensor, sigma: float) -> float:
    """An upper bound, in nats, on I(x; z̃) for z̃ = z + σn, n ~ N(0, I), from samples of z.

        I(x; z̃) ≤ H(g) + Σ_g π_g · ½ Σ_j log(1 + v_gj / σ²)

    for any grouping g of the pictures and any rotation of the features, v_gj being the variance of the rotated
    feature j in group g: a Gaussian has the largest entropy of its covariance, and a determinant is at most the
    product of the diagonal. No assumption on the distribution of z is made. The rotation is learnt from the
    samples `fit`, the variances from the others, so that neither fits the other's chance. The estimate is
    moved up by its bias and by three standard errors. The better of no grouping and `groups` is given.

    Xia et al., "Theoretical insights in model inversion robustness and conditional entropy maximization for
    collaborative inference systems", 2025.
    """
    if not sigma > 0:
        raise ValueError("sigma must be positive: without noise one release may tell everything")
    if len(features) < 2 or features.shape[1:] != fit.shape[1:]:
        raise ValueError("give two samples or more, of the same features as those the rotation is learnt from")
    fit, z = widened(fit.flatten(1)), widened(features.flatten(1))
    best = math.inf
    for trained, own in ((torch.zeros_like(fit_groups), torch.zeros_like(groups)), (fit_groups, groups)):
        _, index, count = own.unique(return_inverse=True, return_counts=True)
        if len(count) > 1 and int(count.min()) < FEWEST:
            continue
        rotated = z if z.shape[1] > _WIDEST else z @ _rotation(fit, trained)
        best = min(best, _grouped_bound(rotated, index, count, sigma))
    return best


def _rotation(z: Tensor, groups: Tensor) -> Tensor:
    """The principal axes of the deviations from group means: D×D."""
    deviations = _deviations(z, *groups.unique(return_inverse=True, return_counts=True)[1:])
    axes: Tensor = torch.linalg.eigh(deviations.T @ deviations)[1]
    return axes


def _deviations(z: Tensor, index: Tensor, count: Tensor) -> Tensor:
    means = z.new_zeros(len(count), z.shape[1]).index_add_(0, index, z) / count[:, None]
    return z - means[index]


def _grouped_bound(z: Tensor, index: Tensor, count: Tensor, sigma: float) -> float:
    squares = _deviations(z, index, count).square()
    freedom = (count - 1).clamp_min(1).to(z.dtype)[:, None]
    variance = z.new_zeros(len(count), z.shape[1]).index_add_(0, index, squares) / freedom  # G×D
    noisy = variance + sigma**2
    share = count.to(z.dtype) / count.sum()
    nats = 0.5 * (variance / sigma**2).log1p().sum(1)
    # E log(v̂ + σ²) lies below log(v + σ²) by half its relative variance, which is 2v²/(n − 1) of a Gaussian's v.
    nats = nats + 0.5 * (variance.square() / (freedom * noisy.square())).sum(1)
    # To first order each sample adds (z − μ)²/2(v + σ²) to the estimate.
    influence = (0.5 * squares / noisy[index]).sum(1)
    error = influence.std() / math.sqrt(len(z)) if len(z) > 1 else 0.0
    choice = -(share * share.log()).sum()
    return float(choice + (share * nats).sum() + _CAUTION * error)


def error_bounds(variances: Tensor, nats: float) -> tuple[float, float]:
    """Lower bounds on the mean squared error in the d principal directions of a Gaussian, given I ≤ nats.

        entropy:  exp(2·H(x|z̃)/d)/(2πe) = (Π λ_i)^(1/d) · exp(−2I/d)
        rate:     1/d · Σ_i min(θ, λ_i)   with   Σ_i ½ max(0, log λ_i/θ) = I

    The first is attained when all directions are equally uncertain after the release; the second, Shannon's
    reverse water-filling, leaves directions alone whose variance λ_i is below the water θ, and is never smaller.
    """
    spread = widened(variances).sort(descending=True).values.clamp_min(1e-300)
    logs = spread.log()
    count = torch.arange(1, len(spread) + 1, dtype=spread.dtype, device=spread.device)
    levels = (logs.cumsum(0) - 2 * nats) / count  # log θ when the k widest directions are told about
    told = int((logs > levels).sum())  # true for the first directions, false behind
    below = spread[told:].sum()
    water = told * levels[told - 1].exp() if told else torch.tensor(0.0)
    return float(levels[-1].exp()), float((water + below) / len(spread))


def picture_variances(images: Tensor) -> Tensor:
    """Variances along the principal axes of pictures, rounding to 8 bits included: d, moved down by three errors."""
    x = widened(images.flatten(1))
    if len(x) < 2:
        raise ValueError(f"variances of pictures need two of them or more, not {len(x)}")
    x = x - x.mean(0)
    # Fewer pictures than pixels: the other directions are known to rounding only.
    gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
    spread = torch.linalg.eigvalsh(gram).clamp_min(0) / (len(x) - 1)
    spread = torch.cat((spread.new_zeros(max(0, x.shape[1] - len(spread))), spread))
    return spread * math.exp(-_CAUTION * math.sqrt(2 / (len(x) - 1))) + ROUNDING


def error_bound(variances: Tensor, nats: float) -> ErrorBound:
    """The bound for pictures of these principal variances, of which one release tells at most `nats`."""
    entropy, rate = error_bounds(variances, nats)
    return ErrorBound(entropy, rate, float(variances.mean()), nats, len(variances))
