"""Several tests at once: Holm's adjustment, and intervals that hold together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from leakscope.stats.distributions import Array
from leakscope.stats.effects import Effect
from leakscope.stats.intervals import Estimate, finite


def holm(p_values: ArrayLike) -> Array:
    """Holm's (1979) adjusted p-values: with p_(1) ≤ … ≤ p_(m), max_{j ≤ i} min(1, (m − j + 1) p_(j)).

    Rejecting those at most α makes one false rejection or more with probability at most α, for any dependence.
    """
    p = finite(p_values, 1)
    if p.min() < 0 or p.max() > 1:
        raise ValueError("p-values lie between 0 and 1")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def holm_levels(p_values: ArrayLike, level: float = 0.05) -> Array:
    """The level at which Holm compares each p-value: level/(m − rank + 1), the smallest p-value first."""
    p = finite(p_values, 1)
    ranks = np.argsort(np.argsort(p, kind="stable"), kind="stable")
    return np.asarray(level / (len(p) - ranks), dtype=float)


def simultaneous_intervals(effects: Sequence[Effect], level: float = 0.95, size: int | None = None) -> list[Estimate]:
    """Bonferroni: each interval at 1 − (1 − level)/m, so that all hold at once with probability `level`.

    m is the size of the family, by default the number of these effects.

    Holm rejects whatever these intervals exclude, and sometimes more: an effect may be shown although its
    simultaneous interval still touches the limit.
    """
    return [effect.interval(1 - (1 - level) / (size or len(effects))) for effect in effects]
