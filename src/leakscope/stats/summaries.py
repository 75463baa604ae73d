"""From one number per victim to what a report prints: mean, spread, interval, worst case."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from leakscope.core.results import Direction, Summary
from leakscope.stats.distributions import Array
from leakscope.stats.intervals import Estimate, finite, ratio_interval, skewed_interval


def summarize(values: ArrayLike, more_leak: Direction) -> Summary:
    """Mean, standard deviation, interval and worst case of one value per victim.

    The end of the interval on the leaking side is the cautious one: a metric of which low values leak is turned
    round first.
    """
    numbers = finite(values, 1)
    if len(numbers) == 1 or float(numbers.std()) == 0:
        value = float(numbers[0]) if float(numbers.std()) == 0 else float(numbers.mean())
        return Summary(value, 0.0, value, value, value, len(numbers))
    if more_leak == "high":
        found = skewed_interval(numbers)
        return _summary(found, float(numbers.std(ddof=1)), float(numbers.max()), len(numbers))
    turned = skewed_interval(-numbers)
    found = Estimate(-turned.value, -turned.high, -turned.low)
    return _summary(found, float(numbers.std(ddof=1)), float(numbers.min()), len(numbers))


def summarize_leak(leaks: ArrayLike, scale: ArrayLike | None) -> Summary:
    """The headline: 1 − Σ‖x−x̂‖²/Σ‖x−x̄‖², both sums resampled together; `scale` is ‖x−x̄‖² of each victim.

    `leaks` are 1 − ‖x−x̂‖²/mean(scale), whose mean is the headline. `worst` is the largest leak of a victim
    measured against that victim's own scale.
    """
    values = finite(leaks, 1)
    if scale is None or len(values) == 1 or float(finite(scale, 1).sum()) == 0:
        return summarize(values, "high")
    base = finite(scale, 1)
    residual = (1 - values) * base.mean()
    found = ratio_interval(residual, base)
    own = own_leaks(values, base)
    return _summary(found, float(values.std(ddof=1)), float(own.max()), len(values))


def own_leaks(leaks: ArrayLike, scale: ArrayLike) -> Array:
    """Each victim's leak against its own distance from the class mean, instead of the mean distance of all."""
    values, base = finite(leaks, 1), finite(scale, 1)
    return np.asarray(1 - (1 - values) * base.mean() / base.clip(min=1e-12))


def _summary(found: Estimate, std: float, worst: float, n: int) -> Summary:
    return Summary(found.value, std, found.low, found.high, worst, n)
