"""How many victims are exposed: an exact bound on a share, and how many victims a statement takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leakscope.stats.distributions import Array, beta_quantile
from leakscope.stats.intervals import finite

THRESHOLD = 0.9


@dataclass(frozen=True)
class Exposed:
    """`count` of `victims` have an own leak above the threshold; their share is at most `upper` at this level."""

    count: int
    victims: int
    upper: float
    level: float

    @property
    def share(self) -> float:
        return self.count / self.victims


def share_bound(count: int, victims: int, level: float = 0.95) -> float:
    """Clopper & Pearson's (1934) one-sided upper bound: the share p with P(Binomial(n, p) ≤ count) = 1 − level.

    It is the quantile of Beta(count + 1, n − count) at `level`; it errs in at most 1 − level of all cases, always.
    """
    if not 0 <= count <= victims or victims < 1:
        raise ValueError(f"{count} of {victims} is not a share")
    return 1.0 if count == victims else beta_quantile(level, count + 1, victims - count)


def exposed_bound(leaks: ArrayLike, threshold: float = THRESHOLD, level: float = 0.95) -> Exposed:
    """The exact upper bound on the share of victims whose own leak is above the threshold."""
    array = finite(leaks, 1)
    count = int((array > threshold).sum())
    return Exposed(count, len(array), share_bound(count, len(array), level), level)


def victims_needed(limit: float, level: float = 0.95) -> int:
    """The least n, with none exposed, that shows a share ≤ limit: (1 − limit)ⁿ ≤ 1 − level."""
    if not 0 < limit < 1:
        raise ValueError(f"a limit lies between 0 and 1, not {limit}")
    n = max(1, math.floor(math.log(1 - level) / math.log1p(-limit)) - 1)
    while share_bound(0, n, level) > limit:
        n += 1
    return n


def worst_over_attacks(leaks: ArrayLike) -> Array:
    """Each victim's own leak under the attack that hurts it most, from an attacks × victims table."""
    return np.asarray(finite(leaks, 2).max(0))
