"""Coverage, tests and power of effects over seeds and victims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped,unused-ignore]

from leakscope.stats import (
    Effect,
    Spread,
    crossed,
    crossed_interval,
    paired_effect,
    seeds_needed,
    smallest_effect,
    spread,
    victims_to_show,
)
from leakscope.stats.distributions import Array


def table(rng: np.random.Generator, seeds: int, victims: int, noise: Spread) -> Array:
    return (
        noise.seed * rng.normal(size=(seeds, 1))
        + noise.victim * rng.normal(size=(1, victims))
        + noise.residual * rng.normal(size=(seeds, victims))
    )


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("seed_spread", [0.01, 0.03, 0.1])
def test_crossed_interval_covers(seeds: int, seed_spread: float) -> None:
    rng = np.random.default_rng(seeds)
    found = [crossed_interval(table(rng, seeds, 64, Spread(seed_spread, 0.1, 0.1))) for _ in range(1_500)]
    assert 0.93 <= np.mean([e.low <= 0 <= e.high for e in found]) <= 0.975  # 0.97, and the error of 1,500 cases


@pytest.mark.parametrize("paired", [True, False])
def test_paired_effect_covers(paired: bool) -> None:
    """Both sides share victims; paired ones share half of the seeds' spread too."""
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(1_500):
        victims = 0.3 * rng.normal(size=(1, 64))
        seeds = 0.03 * rng.normal(size=(4, 1)) * paired
        left = 0.1 + victims + seeds + table(rng, 4, 64, Spread(0.03, 0.05, 0.1))
        right = victims + (seeds if paired else 0) + table(rng, 4 if paired else 6, 64, Spread(0.03, 0.05, 0.1))
        found = paired_effect(left, right, paired).interval()
        inside.append(found.low <= 0.1 <= found.high)
    assert 0.93 <= np.mean(inside) <= 0.975


def test_redrawn_victims_leave_one_value_per_seed() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(5, 40))
    found = crossed_interval(values, redrawn=True)
    means = values.mean(1)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 4, means.mean(), stats.sem(means)))


def test_one_victim_per_side_is_the_t_test() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.5, 1, (6, 1)), rng.normal(0, 2, (9, 1))
    welch = stats.ttest_ind(a[:, 0], b[:, 0], equal_var=False)
    found = paired_effect(a, b, paired=False)
    assert (found.p, found.freedom) == pytest.approx((welch.pvalue, welch.df))
    same = paired_effect(a, b[:6])
    assert same.p == pytest.approx(stats.ttest_rel(a[:, 0], b[:6, 0]).pvalue)


def test_variance_components_are_those_of_the_layout() -> None:
    rng = np.random.default_rng(4)
    truth = Spread(0.05, 0.2, 0.1)
    found = [spread(table(rng, 10, 100, truth)) for _ in range(300)]
    assert np.mean([f.seed**2 for f in found]) == pytest.approx(truth.seed**2, rel=0.1)
    assert np.mean([f.victim**2 for f in found]) == pytest.approx(truth.victim**2, rel=0.1)
    assert np.mean([f.residual**2 for f in found]) == pytest.approx(truth.residual**2, rel=0.05)


def test_one_seed_says_nothing() -> None:
    found = crossed([[0.1, 0.2, 0.3]])
    assert found.value == pytest.approx(0.2)
    assert found.interval().low == -math.inf
    assert found.p_above() == found.p_below() == 1


def test_no_spread_at_all_decides() -> None:
    found = crossed(np.full((3, 4), 0.5))
    assert (found.p_above(0.4), found.p_above(0.5), found.p_below(0.5)) == (0, 1, 1)


def test_p_values_and_intervals_agree() -> None:
    found = Effect(0.3, 0.1, 7, 0.05, 2)
    end = found.interval(0.95).low
    assert found.p_above(end) == pytest.approx(0.025)
    assert found.p_below(found.interval(0.95).high) == pytest.approx(0.025)


@pytest.mark.parametrize(("seeds", "noise"), [(5, Spread(0.02, 0.1, 0.1)), (10, Spread(0.05, 0.05, 0.1))])
def test_the_smallest_effect_is_found_with_the_stated_power(seeds: int, noise: Spread) -> None:
    rng = np.random.default_rng(5)
    effect = smallest_effect(noise, seeds, 100, power=0.8)
    found = [crossed(effect + table(rng, seeds, 100, noise)).p_above() <= 0.025 for _ in range(1_000)]
    assert 0.74 <= np.mean(found) <= 0.88


def test_numbers_needed_are_the_least() -> None:
    noise = Spread(0.03, 0.05, 0.1)
    seeds = seeds_needed(0.04, noise, 100)
    assert seeds is not None
    assert smallest_effect(noise, seeds, 100) <= 0.04 < smallest_effect(noise, seeds - 1, 100)
    victims = victims_to_show(0.1, noise, 5)
    assert victims is not None
    assert smallest_effect(noise, 5, victims) <= 0.1
    assert seeds_needed(0.001, noise, 100) is None  # 100 victims cannot show it, however many seeds
    assert victims_to_show(0.01, noise, 3) is None  # three seeds cannot, however many victims
