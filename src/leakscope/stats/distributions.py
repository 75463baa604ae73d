"""Quantiles and tails of Student's t, the normal and the beta distribution; scipy is imported when first needed."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
#: A standard error and its degrees of freedom.
Scale = tuple[float, float]


def _special() -> Any:
    # 0.1 to 0.4 s: too long for `leakscope --help`, and the whole of `scipy.stats` takes longer still.
    import scipy.special  # type: ignore[import-untyped,unused-ignore]

    return scipy.special


def normal_quantile(probability: ArrayLike) -> Array:
    return np.asarray(_special().ndtri(probability), dtype=float)


def normal_below(z: ArrayLike) -> Array:
    """P(Z ≤ z)."""
    return np.asarray(_special().ndtr(z), dtype=float)


def student_quantile(probability: float, freedom: float) -> float:
    """The t with P(T ≤ t) = probability; the degrees of freedom need not be whole."""
    return float(_special().stdtrit(freedom, probability))


def student_above(t: float, freedom: float) -> float:
    """P(T > t)."""
    return float(_special().stdtr(freedom, -t))


@cache
def _nodes() -> tuple[Array, Array]:
    """Places and weights of Gauss and Legendre on (0, 1)."""
    places, weights = np.polynomial.legendre.leggauss(48)
    return (places + 1) / 2, weights / 2


def student_sum_above(distance: float, first: Scale, second: Scale) -> float:
    """P(e₁ T₁ + e₂ T₂ > distance) of independent Student variables (Behrens and Fisher's distribution).

    = ∫ P(T₁ > (distance − e₂ t)/e₁) f(t) dt over the density f of T₂, the one with more degrees of freedom ν, with
    t = √ν tan θ, whose density is proportional to cos^(ν−1) θ. Two parts meet where the integrand is 1/2, because it
    is nearly a step there when e₁ is small.
    """
    (error, freedom), (other, other_freedom) = sorted((first, second), key=lambda scale: scale[1])
    for negligible, (only, only_freedom) in ((error, (other, other_freedom)), (other, (error, freedom))):
        if negligible <= 1e-9 * only:
            return student_above(distance / only, only_freedom) if only > 0 else float(distance < 0)
    root = math.sqrt(other_freedom)
    end = math.pi / 2 if other_freedom < 60 else math.atan(10 / root)  # beyond: less than 1e-13
    middle = min(max(math.atan(distance / (other * root)), -end), end)
    factor = math.exp(math.lgamma((other_freedom + 1) / 2) - math.lgamma(other_freedom / 2)) / math.sqrt(math.pi)
    places, weights = _nodes()
    total = 0.0
    for low, high in ((-end, middle), (middle, end)):
        angle = low + (high - low) * places
        above = _special().stdtr(freedom, (other * root * np.tan(angle) - distance) / error)
        total += (high - low) * float(weights @ (np.cos(angle) ** (other_freedom - 1) * above))
    return min(factor * total, 1.0)


def student_sum_quantile(probability: float, first: Scale, second: Scale) -> float:
    """The distance that e₁ T₁ + e₂ T₂ stays below with this probability (at least 1/2): the secant method on log P.

    It starts from √(e₁² t₁² + e₂² t₂²) with the quantiles of T₁ and T₂, which is exact at both ends.
    """
    if probability <= 0.5:
        return 0.0
    wanted = math.log(1 - probability)
    start = math.hypot(*(error * student_quantile(probability, freedom) for error, freedom in (first, second)))
    if min(first[0], second[0]) <= 1e-9 * max(first[0], second[0]):
        return start
    at, before = start, 0.98 * start
    off, off_before = (math.log(student_sum_above(place, first, second)) - wanted for place in (at, before))
    for _ in range(50):
        if abs(off) < 1e-9 or off == off_before:
            break
        at, before, off_before = at - off * (at - before) / (off - off_before), at, off
        off = math.log(student_sum_above(at, first, second)) - wanted
    return at


def beta_quantile(probability: float, first: float, second: float) -> float:
    return float(_special().betaincinv(first, second, probability))
