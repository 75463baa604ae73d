"""Effects over seeds and victims, both drawn at random: errors, degrees of freedom, tests and power."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from leakscope.stats.distributions import Array, student_above, student_quantile
from leakscope.stats.intervals import Estimate, finite

#: Degrees of freedom are reckoned as if the seeds' mean square were this many times what was seen. Of three seeds
#: it comes out below a third of its expectation in 28 % of cases, which would then pass for many degrees of freedom
#: (coverage 92 %).
_CAUTION = 3.0
_MOST = 100_000


@dataclass(frozen=True)
class Effect:
    """A mean or difference, its standard error and the degrees of freedom of that error (0: not known).

    `seed_error` and `seed_freedom` are those of the seeds' means alone. Intervals are the wider, p-values the larger
    of the two tests: three seeds may lie close together by chance, which the first then takes for no spread at all
    (7–15 % false "holds" in a family of ten, simulated; with both at most 2.7 %).
    """

    value: float
    error: float
    freedom: float
    seed_error: float = 0.0
    seed_freedom: float = 1.0

    def interval(self, level: float = 0.95) -> Estimate:
        """value ± t error, with t at (1 + level)/2."""
        half = self.reach((1 + level) / 2)
        return Estimate(self.value, self.value - half, self.value + half, level)

    def reach(self, probability: float) -> float:
        """t error for this quantile of t, the larger of both."""
        if self.freedom <= 0:
            return math.inf
        seeds = student_quantile(probability, self.seed_freedom) * self.seed_error
        return max(student_quantile(probability, self.freedom) * self.error, seeds)

    def p_above(self, limit: float = 0.0) -> float:
        """One-sided p-value of "the effect is at most `limit`": small when it is shown to be above."""
        if self.freedom <= 0:
            return 1.0
        if self.error == 0:
            return float(self.value <= limit)
        beyond = self.value - limit
        p = student_above(beyond / self.error, self.freedom)
        return max(p, student_above(beyond / self.seed_error, self.seed_freedom)) if self.seed_error > 0 else p

    def p_below(self, limit: float = 0.0) -> float:
        """One-sided p-value of "the effect is at least `limit`"."""
        return replace(self, value=-self.value).p_above(-limit)

    @property
    def p(self) -> float:
        """Two-sided p-value of "no effect"."""
        return min(1.0, 2 * min(self.p_above(), self.p_below()))


@dataclass(frozen=True)
class Spread:
    """Standard deviations of y_sv = mean + seed_s + victim_v + residual_sv."""

    seed: float
    victim: float
    residual: float


@dataclass(frozen=True)
class _Squares:
    """Mean squares of a seeds × victims table; without a second victim there is no residual to part from the seeds."""

    seeds: int
    victims: int
    seed: float
    victim: float
    residual: float


def _squares(table: Array) -> _Squares:
    seeds, victims = table.shape
    rows, columns, mean = table.mean(1), table.mean(0), table.mean()
    rest = table - rows[:, None] - columns + mean
    return _Squares(
        seeds,
        victims,
        victims * float(((rows - mean) ** 2).sum()) / max(seeds - 1, 1),
        seeds * float(((columns - mean) ** 2).sum()) / max(victims - 1, 1),
        float((rest**2).sum()) / max((seeds - 1) * (victims - 1), 1),
    )


def _effect(value: float, arms: Sequence[_Squares], victim: float, victims: int) -> Effect:
    """Standard errors and Satterthwaite's degrees of freedom from the seeds of each arm and the victims.

    error² = Σ_arms (MS_seed − MS_residual)₊/(S V) + (variance of the mean over victims).
    freedom = (Σ terms)² / Σ (term²/its freedom), with `_CAUTION` times MS_seed.
    Of the seeds alone: error² = Σ_arms MS_seed/(S V), with Welch's freedom (S − 1 for one arm).
    """
    cells = [arm.seeds * arm.victims for arm in arms]
    seeds = [max(arm.seed - arm.residual, 0.0) / n for arm, n in zip(arms, cells, strict=True)]
    square = sum(seeds) + victim
    cautious, weight = victim, victim**2 / max(victims - 1, 1)
    for arm, n, part in zip(arms, cells, seeds, strict=True):
        if part > 0:
            cautious += (_CAUTION * arm.seed - arm.residual) / n
            weight += (_CAUTION * arm.seed / n) ** 2 / (arm.seeds - 1)
    least = min([arm.seeds - 1 for arm in arms] + ([victims - 1] if victims > 1 else []))
    freedom = max(cautious**2 / weight, least) if weight > 0 else float(least)
    alone = [arm.seed / n for arm, n in zip(arms, cells, strict=True)]
    welch = sum(part**2 / (arm.seeds - 1) for arm, part in zip(arms, alone, strict=True))
    seed_freedom = sum(alone) ** 2 / welch if welch > 0 else 1.0
    return Effect(value, math.sqrt(square), freedom, math.sqrt(sum(alone)), seed_freedom)


def crossed(table: ArrayLike, redrawn: bool = False) -> Effect:
    """The mean of a seeds × victims table when both seeds and victims are random.

    error² = (MS_seed + MS_victim − MS_residual)/(S V), parts below 0 left out. `redrawn`: each seed has victims of
    its own, so that a row's mean is one independent value and error² = s²(row means)/S.
    """
    array = finite(table, 2)
    if redrawn:
        array = array.mean(1, keepdims=True)
    squares = _squares(array)
    if squares.seeds < 2:
        return Effect(float(array.mean()), math.inf, 0)
    victim = max(squares.victim, squares.residual) / array.size if squares.victims > 1 else 0.0
    return _effect(float(array.mean()), [squares], victim, squares.victims)


def crossed_interval(table: ArrayLike, level: float = 0.95, redrawn: bool = False) -> Estimate:
    """`crossed` as an interval. One seed says nothing about seeds: its ends are infinite."""
    return crossed(table, redrawn).interval(level)


def paired_effect(left: ArrayLike, right: ArrayLike, paired: bool = True, redrawn: bool = False) -> Effect:
    """left − right over the same victims (seeds × victims each).

    `paired`: row s of both sides is the same seed, and the differences are one table (`crossed`). Otherwise the
    sides may differ in their number of seeds, and each adds a seed part of its own:
    error² = Σ_sides (MS_seed − MS_residual)₊/(S V) + s²(victims' differences of means)/V.
    """
    a, b = finite(left, 2), finite(right, 2)
    if redrawn:
        a, b = a.mean(1, keepdims=True), b.mean(1, keepdims=True)
    if a.shape[1] != b.shape[1] or (paired and len(a) != len(b)):
        raise ValueError(f"sides of {a.shape} and {b.shape} are not the same victims{' and seeds' if paired else ''}")
    if paired:
        return crossed(a - b)
    difference = a.mean(0) - b.mean(0)
    if min(len(a), len(b)) < 2:
        return Effect(float(difference.mean()), math.inf, 0)
    victims = len(difference)
    victim = float(difference.var(ddof=1)) / victims if victims > 1 else 0.0
    return _effect(float(difference.mean()), [_squares(a), _squares(b)], victim, victims)


def spread(table: ArrayLike) -> Spread:
    """Variance components by the method of moments: σ²_seed = (MS_seed − MS_residual)₊/V, σ²_victim alike."""
    found = _squares(finite(table, 2))
    seed = max(found.seed - found.residual, 0.0) / found.victims
    victim = max(found.victim - found.residual, 0.0) / found.seeds
    return Spread(math.sqrt(seed), math.sqrt(victim), math.sqrt(found.residual))


def smallest_effect(noise: Spread, seeds: int, victims: int, level: float = 0.05, power: float = 0.8) -> float:
    """The effect (beyond the minimum that counts) that is shown with this power: (t_{1−level/2} + t_power) error."""
    if seeds < 2:
        return math.inf
    residual = noise.residual**2
    expected = _Squares(
        seeds, victims, victims * noise.seed**2 + residual, seeds * noise.victim**2 + residual, residual
    )
    effect = _effect(0.0, [expected], expected.victim / (seeds * victims) if victims > 1 else 0.0, victims)
    return effect.reach(1 - level / 2) + student_quantile(power, effect.freedom) * effect.error


def seeds_needed(effect: float, noise: Spread, victims: int, level: float = 0.05, power: float = 0.8) -> int | None:
    """The least number of seeds that shows this effect; None if no number does, because victims are too few."""
    return _least(lambda seeds: smallest_effect(noise, seeds, victims, level, power) <= effect)


def victims_to_show(effect: float, noise: Spread, seeds: int, level: float = 0.05, power: float = 0.8) -> int | None:
    """The least number of victims that shows this effect; None if no number does, because seeds are too few."""
    return _least(lambda victims: smallest_effect(noise, seeds, victims, level, power) <= effect)


def _least(enough: Callable[[int], bool]) -> int | None:
    """The least n from 2 on that is enough, by doubling and halving; None beyond `_MOST`."""
    if not enough(_MOST):
        return None
    high = 2
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
