"""Intervals over victims for means and for the pooled leak, which is a ratio of two sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leakscope.stats.dirichlet import upper_end
from leakscope.stats.distributions import Array, normal_quantile, student_quantile

#: How many of the added victim count at the upper end (a whole one gives Clopper–Pearson) and at the lower end
#: (a quarter, chosen by simulation: with a whole one the interval covers 97.5 % and more of ordinary data).
_ABOVE, _BELOW = 1.0, 0.25


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its interval; infinite ends mean that the data say nothing about the spread."""

    value: float
    low: float
    high: float
    level: float = 0.95

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def finite(values: ArrayLike, dimensions: int) -> Array:
    """The values as an array of so many dimensions; refuses NaN, infinities and empty input."""
    array = np.asarray(values, dtype=float)
    if array.ndim != dimensions or array.size == 0:
        raise ValueError(f"expected {dimensions} dimensions and at least one value, got shape {array.shape}")
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise ValueError(f"{bad} of {array.size} values are NaN or infinite; a metric went wrong")
    return array


def mean_interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Student's interval for a mean: x̄ ± t_{n−1} s/√n. Right for seeds; for leaks of victims use `skewed_interval`."""
    array = finite(values, 1)
    mean, n = float(array.mean()), len(array)
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, level)
    half = student_quantile((1 + level) / 2, n - 1) * float(array.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, level)


def skewed_interval(values: ArrayLike, level: float = 0.95, ceiling: float | None = None) -> Estimate:
    """`ratio_interval` for a plain mean of values of which the high ones are the dangerous ones."""
    array = finite(values, 1)
    return _estimate(array, np.ones_like(array), level, ceiling)


def ratio_interval(
    residual: ArrayLike, reference: ArrayLike, level: float = 0.95, ceiling: float | None = None
) -> Estimate:
    """The pooled leak 1 − Σ a_i / Σ b_i of victims with a_i = ‖x−x̂‖² and b_i = ‖x−x̄‖², and its interval.

    Numerator and denominator of a victim stay together: each victim gets one random weight E_i ~ Exp(1) (Bayesian
    bootstrap; Rubin, 1981), and the interval holds the middle of 1 − Σ E_i a_i / Σ E_i b_i, found without drawing
    (see `dirichlet`). At the upper end the most leaking victim is counted once more (Gaffke, 2005; Learned-Miller &
    Thomas, 2019), and the end is never below the linearised one,
    leak + t_{n−1} s(d)/√n with d_i = (b_i − a_i − leak·b_i)/b̄.

    What is guaranteed: if each victim leaks either everything or nothing, with equal b_i, and at least one exposed
    victim is among those seen, the upper end is that of Clopper and Pearson, so it is too low in at most
    (1 − level)/2 of all cases. If none of the n was seen, which happens with probability (1 − p)ⁿ, nobody can know of
    it: use `exposed_bound`, or give `ceiling=1`. The added victim then leaks everything, and the bound holds (by
    Gaffke's conjecture, proved for some and simulated for many distributions) whatever the distribution of leaks, at
    the price of about (1 − leak)/n of width. Otherwise the level holds in simulations only: at n = 32 to 256, 94–97 %
    two-sided in six continuous cases; with one victim in eight exposed the upper end is too low in 1–2 %.
    Below 16 victims it is not reliable.
    """
    a, b = finite(residual, 1), finite(reference, 1)
    if a.shape != b.shape or b.min() < 0 or b.sum() <= 0:
        raise ValueError("each victim needs a residual and a reference that is not negative, and some variance")
    return _estimate(b - a, b, level, ceiling)


def _estimate(gain: Array, base: Array, level: float, ceiling: float | None) -> Estimate:
    value = float(gain.sum() / base.sum())
    if len(gain) == 1:
        return Estimate(value, -math.inf, math.inf, level)
    low, high = leak_ends(gain[None], base[None], (1 + level) / 2, (1 + level) / 2, ceiling)
    return Estimate(value, float(low[0]), float(high[0]), level)


def leak_ends(
    gain: Array, base: Array, below: float, above: float, ceiling: float | None = None
) -> tuple[Array, Array]:
    """Both ends of Σ gain / Σ base for each row (… × victims), each at its own one-sided level."""
    rows, n = gain.shape[:-1], gain.shape[-1]
    scores = ratio_scores(base - gain, base)
    error = scores.std(-1, ddof=1) / math.sqrt(n)
    high = upper_end(gain, base, np.broadcast_to(normal_quantile(above), rows), _ABOVE, ceiling)
    low = -upper_end(-gain, base, np.full(rows, student_quantile(below, n - 1)), _BELOW)
    return low, np.maximum(high, scores.mean(-1) + student_quantile(above, n - 1) * error)


def ratio_scores(residual: Array, reference: Array) -> Array:
    """One number per victim whose mean over victims is the pooled leak: leak + (b_i − a_i − leak·b_i)/b̄.

    These are the leak and each victim's influence on it; the variance of their mean is, to first order, that of the
    leak. Feed them to what takes plain values (`crossed_interval`, `paired_effect`): pooled leaks are then compared.
    """
    gain = reference - residual
    leak = gain.sum(-1, keepdims=True) / reference.sum(-1, keepdims=True)
    return np.asarray(leak + (gain - leak * reference) / reference.mean(-1, keepdims=True))


def victims_for_limit(estimate: Estimate, victims: int, limit: float) -> int | None:
    """How many victims would bring the upper end to the limit if the value stayed; None if the value is above it.

    The distance from value to end shrinks as 1/√n: n' = n ((high − value)/(limit − value))².
    """
    if estimate.high <= limit:
        return victims
    if estimate.value >= limit or not estimate.bounded:
        return None
    return math.ceil(victims * ((estimate.high - estimate.value) / (limit - estimate.value)) ** 2)
