"""Effects over seeds and victims, both drawn at random: errors, degrees of freedom, tests and power."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from leakscope.stats.distributions import Array, student_quantile, student_sum_above, student_sum_quantile
from leakscope.stats.intervals import Estimate, finite

_MOST = 100_000


@dataclass(frozen=True)
class Effect:
    """A mean or difference with two independent errors, that of the seeds and that of the victims.

    Each error was estimated with its own degrees of freedom (seeds: 0 if there is only one). The deviation from the
    truth is distributed as seed_error T₁ + victim_error T₂ with independent Student variables (Behrens, 1929; Fisher,
    1935). This is the t-test over seeds where victims do not vary, and the t-test over victims where seeds do not.
    """

    value: float
    seed_error: float
    seed_freedom: float
    victim_error: float = 0.0
    victim_freedom: float = 1.0

    @property
    def error(self) -> float:
        """The standard error: √(seed_error² + victim_error²); infinite with a single seed."""
        return math.hypot(self.seed_error, self.victim_error) if self.seed_freedom > 0 else math.inf

    def interval(self, level: float = 0.95) -> Estimate:
        """value ± the reach at (1 + level)/2."""
        half = self.reach((1 + level) / 2)
        return Estimate(self.value, self.value - half, self.value + half, level)

    def reach(self, probability: float) -> float:
        """This quantile of the deviation from the truth."""
        if self.seed_freedom <= 0:
            return math.inf
        return student_sum_quantile(
            probability, (self.seed_error, self.seed_freedom), (self.victim_error, self.victim_freedom)
        )

    def p_above(self, limit: float = 0.0) -> float:
        """One-sided p-value of "the effect is at most `limit`": small when it is shown to be above."""
        if self.seed_freedom <= 0:
            return 1.0
        if self.error == 0:
            return float(self.value <= limit)
        return student_sum_above(
            self.value - limit, (self.seed_error, self.seed_freedom), (self.victim_error, self.victim_freedom)
        )

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
    """Mean squares of a seeds × victims table; with a single victim there is no residual beside the seeds."""

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
    """The seeds' error from the arms' row means, and the victims' from what their mean varies beyond that.

    seed_error² = Σ_arms MS_seed/(S V), with Welch's (1947) degrees of freedom (S − 1 for one arm). MS_seed includes
    the residuals and is not corrected by them: of three seeds it is often small by chance, and any correction would
    take that for certainty. victim_error² = (`victim` − Σ_arms MS_residual/(S V))₊, a difference, whose degrees of
    freedom are Satterthwaite's (1946), and at least half of V − 1: below that the difference is small itself.
    """
    seeds = [arm.seed / (arm.seeds * arm.victims) for arm in arms]
    residuals = [arm.residual / (arm.seeds * arm.victims) for arm in arms]
    welch = sum(part**2 / (arm.seeds - 1) for arm, part in zip(arms, seeds, strict=True))
    freedom = sum(seeds) ** 2 / welch if welch > 0 else float(min(arm.seeds for arm in arms) - 1)
    beyond = max(victim - sum(residuals), 0.0)
    doubt = victim**2 + sum(part**2 / (arm.seeds - 1) for arm, part in zip(arms, residuals, strict=True))
    share = min(max(beyond**2 / doubt, 0.5), 1.0) if doubt > 0 else 1.0
    return Effect(value, math.sqrt(sum(seeds)), freedom, math.sqrt(beyond), max(share * (victims - 1), 1.0))


def crossed(table: ArrayLike, redrawn: bool = False) -> Effect:
    """The mean of a seeds × victims table when both seeds and victims are random.

    error² = MS_seed/(S V) + (MS_victim − MS_residual)₊/(S V). `redrawn`: each seed has victims of its own, so that a
    row's mean is one independent value and error² = s²(row means)/S. Simulated coverage of 95 % intervals for 3, 5
    and 10 seeds, 16 to 256 victims and all spreads: tests/stats/test_effects.py.
    """
    array = finite(table, 2)
    if redrawn:
        array = array.mean(1, keepdims=True)
    squares = _squares(array)
    if squares.seeds < 2:
        return Effect(float(array.mean()), 0.0, 0)
    victim = squares.victim / array.size if squares.victims > 1 else 0.0
    return _effect(float(array.mean()), [squares], victim, squares.victims)


def crossed_interval(table: ArrayLike, level: float = 0.95, redrawn: bool = False) -> Estimate:
    """`crossed` as an interval. One seed says nothing about seeds: its ends are infinite."""
    return crossed(table, redrawn).interval(level)


def paired_effect(left: ArrayLike, right: ArrayLike, paired: bool = True, redrawn: bool = False) -> Effect:
    """left − right over the same victims (seeds × victims each).

    `paired`: row s of both sides is the same seed, and the differences are one table (`crossed`). Otherwise the
    sides may differ in their number of seeds, and each adds a seed part of its own:
    error² = Σ_sides MS_seed/(S V) + (s²(victims' differences of means)/V − Σ_sides MS_residual/(S V))₊.
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
        return Effect(float(difference.mean()), 0.0, 0)
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
    """The effect (beyond the minimum that counts) that is shown with this power.

    The reach at 1 − level/2 and at `power`, each nearly √(e_seed² t_seed² + e_victim² t_victim²).
    """
    if seeds < 2:
        return math.inf
    residual = noise.residual**2
    expected = _Squares(
        seeds, victims, victims * noise.seed**2 + residual, seeds * noise.victim**2 + residual, residual
    )
    effect = _effect(0.0, [expected], expected.victim / (seeds * victims) if victims > 1 else 0.0, victims)
    errors = ((effect.seed_error, effect.seed_freedom), (effect.victim_error, effect.victim_freedom))
    return sum(
        math.hypot(*(error * student_quantile(probability, freedom) for error, freedom in errors))
        for probability in (1 - level / 2, power)
    )


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
