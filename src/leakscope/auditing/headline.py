"""The largest leak of one target, and of one defence over its seeds: the strongest attack, corrected for its choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.core.reports import ExposedShare
from leakscope.core.results import Summary
from leakscope.stats.effects import crossed_interval
from leakscope.stats.exposure import exposed_bound, share_bound
from leakscope.stats.intervals import ratio_scores
from leakscope.stats.strongest import maximum_over_attacks
from leakscope.stats.summaries import own_leaks, summarize_leak

#: Victims that choosing an attack on one half and measuring it on the other takes.
_FEWEST = 4


@dataclass(frozen=True)
class Leaks:
    """The leak of every victim of one target under each of its attacks, and what an own leak is measured against."""

    values: NDArray[np.float64]  # attacks × victims
    scale: NDArray[np.float64] | None  # victims; None: every victim counts alike

    @property
    def base(self) -> NDArray[np.float64]:
        return np.ones(self.values.shape[1]) if self.scale is None else self.scale

    @property
    def residual(self) -> NDArray[np.float64]:
        """‖x − x̂‖² of each victim under each attack."""
        return np.asarray((1 - self.values) * self.base.mean())

    @property
    def own(self) -> NDArray[np.float64]:
        """Each victim's largest own leak under any attack."""
        return np.asarray(np.stack([own_leaks(row, self.base) for row in self.values]).max(0))

    @property
    def best(self) -> int:
        return int(self.values.mean(1).argmax())


def headline(leaks: Leaks) -> Summary:
    """The strongest attack's leak: its mean corrected for having been chosen, its upper end valid for the maximum."""
    best = summarize_leak(leaks.values[leaks.best], leaks.scale)
    if leaks.values.shape[1] < _FEWEST or len(leaks.values) < 2 or float(leaks.base.sum()) == 0:
        return best
    found = maximum_over_attacks(leaks.residual, leaks.base).estimate
    worst = float(leaks.own.max())
    return Summary(found.value, best.std, found.low, found.high, worst, leaks.values.shape[1])


def exposed(leaks: Leaks) -> ExposedShare:
    found = exposed_bound(leaks.own)
    return ExposedShare(found.count, found.victims, found.upper)


def over_seeds(seeds: Sequence[Leaks]) -> tuple[Summary, ExposedShare]:
    """The leak of a defence over its trainings: one strongest attack per seed, seeds as a random effect."""
    parts = [exposed(leaks) for leaks in seeds]
    count, victims = sum(part.count for part in parts), sum(part.victims for part in parts)
    share = ExposedShare(count, victims, share_bound(count, victims))
    each = [headline(leaks) for leaks in seeds]
    if len(seeds) == 1:
        return each[0], share
    same = min(leaks.values.shape[1] for leaks in seeds)
    table = np.stack([ratio_scores(own.residual[own.best], own.base)[:same] for own in seeds])
    found = crossed_interval(table, redrawn=True)
    mean = float(np.mean([own.mean for own in each]))
    # The correction for the choice moves the interval as it moves the mean; no seed's own certainty is given up.
    shift = mean - found.value
    low, high = max(found.low + shift, min(own.low for own in each)), found.high + shift
    spread = float(np.std([own.mean for own in each], ddof=1))
    return Summary(mean, spread, min(low, mean), max(high, mean), max(own.worst for own in each), victims), share
