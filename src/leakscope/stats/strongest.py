"""The leak of the strongest of several attacks on the same victims, corrected for having chosen the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leakscope.stats.distributions import Array, normal_below, normal_quantile
from leakscope.stats.intervals import Estimate, finite, leak_ends, ratio_scores

_SPLITS, _DRAWS = 100, 2_000


@dataclass(frozen=True)
class Strongest:
    """`estimate` is corrected for the choice; `observed` is the plain maximum, `excess` what the choice added."""

    estimate: Estimate
    observed: float
    attack: int

    @property
    def excess(self) -> float:
        return self.observed - self.estimate.value


def _cross_fitted(gain: Array, base: Array, rng: np.random.Generator) -> float:
    """Choose the attack on one half of the victims, measure it on the other, both ways, over random halvings."""
    n = gain.shape[1]
    half = np.argsort(rng.random((_SPLITS, n)), axis=1) < n // 2
    leaks = [np.asarray((part @ gain.T) / (part @ base.T)) for part in (half.astype(float), (~half).astype(float))]
    measured = [np.take_along_axis(there, here.argmax(1)[:, None], 1) for here, there in (leaks, leaks[::-1])]
    return float(np.mean(measured))


def _lower_level(scores: Array, level: float, rng: np.random.Generator) -> float:
    """The one-sided level at which the lower ends of all attacks that may be the strongest hold at once.

    Attacks more than three standard errors behind the best cannot matter. For the others, under equal means,
    Z ~ N(0, correlation): the upper end of the maximum errs with u = P(max Z < −z), and the quantile c of max Z at
    level + u leaves the rest of the error to the lower end, but no more than three quarters of it. With one attack
    this is (1 + level)/2.
    """
    n = scores.shape[1]
    behind = scores[scores.mean(1).argmax()] - scores
    close = scores[behind.mean(1) <= 3 * behind.std(1, ddof=1) / np.sqrt(n)]
    close = close[close.std(1) > 0]
    if len(close) < 2:
        return (1 + level) / 2
    values, vectors = np.linalg.eigh(np.corrcoef(close))
    root = vectors * np.sqrt(np.maximum(values, 0))
    most = (rng.standard_normal((_DRAWS, len(close))) @ root.T).max(1)
    alone = normal_quantile((1 + level) / 2)
    above = float((most < -alone).mean())
    return float(normal_below(max(np.quantile(most, level + max(above, (1 - level) / 4)), alone)))


def maximum_over_attacks(
    residual: ArrayLike,
    reference: ArrayLike,
    level: float = 0.95,
    ceiling: float | None = None,
    rng: np.random.Generator | None = None,
) -> Strongest:
    """The largest pooled leak of K attacks (`residual`: attacks × victims; `reference`: one per victim).

    Value: cross-fitting, so that K useless attacks have no excess (it may understate: half the victims choose).
    Upper end: max_k of each attack's own upper end. The strongest attack's is among them, so it is below the true
    maximum no more often than that one's, for any number of attacks and any dependence.
    Lower end: max_k of the lower ends that hold for all attacks at once (max-t; Romano & Wolf, 2005).
    """
    a = finite(residual, 2)
    base = np.broadcast_to(finite(reference, 1), a.shape)
    if a.shape[1] < 4:
        raise ValueError(f"{a.shape[1]} victims are too few to choose an attack on some and to measure it on others")
    rng = np.random.default_rng(0) if rng is None else rng
    gain = base - a
    leaks = gain.sum(1) / base.sum(1)
    low, high = leak_ends(gain, base, _lower_level(ratio_scores(a, base), level, rng), (1 + level) / 2, ceiling)
    value = float(leaks[0]) if len(leaks) == 1 else min(_cross_fitted(gain, base, rng), float(leaks.max()))
    estimate = Estimate(value, min(float(low.max()), value), max(float(high.max()), value), level)
    return Strongest(estimate, float(leaks.max()), int(leaks.argmax()))
