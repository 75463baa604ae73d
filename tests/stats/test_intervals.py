"""Coverage of intervals over victims, on simulated leaks whose truth is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped,unused-ignore]

from leakscope.stats import (
    Estimate,
    exposed_bound,
    maximum_over_attacks,
    mean_interval,
    ratio_interval,
    ratio_scores,
    skewed_interval,
    victims_for_limit,
    victims_needed,
    worst_over_attacks,
)
from leakscope.stats.dirichlet import upper_end
from leakscope.stats.distributions import Array
from leakscope.stats.intervals import leak_ends

Leaks = Callable[[np.random.Generator, tuple[int, int]], Array]

#: Own leaks of victims with their mean; the denominators are drawn apart, so that mean is the pooled leak.
CONTINUOUS: dict[str, tuple[Leaks, float]] = {
    "normal": (lambda rng, shape: rng.normal(0.3, 0.2, shape), 0.3),
    "few leak much": (lambda rng, shape: rng.beta(1, 9, shape), 0.1),
    "most leak much": (lambda rng, shape: rng.beta(8, 1, shape), 8 / 9),
    "some are far below 0": (lambda rng, shape: 1 - rng.chisquare(6, shape) / 6, 0.0),
}
SIZES = (32, 64, 256)


def one_in_eight(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.where(rng.random(shape) < 1 / 8, 1.0, rng.normal(0, 0.05, shape))


def misses(leaks: Leaks, truth: float, n: int, cases: int = 1_500) -> tuple[float, float]:
    """How often the truth is below the lower end, and above the upper end."""
    rng = np.random.default_rng(n)
    reference = rng.gamma(4, 1, (cases, n))
    low, high = leak_ends(reference * leaks(rng, (cases, n)), reference, 0.975, 0.975)
    return float((truth < low).mean()), float((truth > high).mean())


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_pooled_leak_covers_the_truth(name: str, n: int) -> None:
    below, above = misses(*CONTINUOUS[name], n)
    assert 0.93 <= 1 - below - above <= 0.975  # 0.97, and the error of 1,500 cases
    assert above <= 0.04


@pytest.mark.parametrize("n", SIZES)
def test_one_victim_in_eight_exposed_is_not_missed(n: int) -> None:
    below, above = misses(one_in_eight, 1 / 8, n)
    assert above <= 0.04
    assert below <= 0.04


def test_students_interval_would_miss_the_exposed() -> None:
    """The reason for the added victim: Student's upper end is too low in about a tenth of the cases."""
    rng = np.random.default_rng(1)
    missed = [mean_interval(row).high < 1 / 8 for row in one_in_eight(rng, (600, 32))]
    assert np.mean(missed) > 0.06


def test_public_functions_give_the_ends_that_were_simulated() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.gamma(2, 1, 40), rng.gamma(4, 1, 40)
    low, high = leak_ends((b - a)[None], b[None], 0.975, 0.975)
    found = ratio_interval(a, b)
    assert (found.value, found.low, found.high) == pytest.approx((1 - a.sum() / b.sum(), low[0], high[0]))
    plain, same = skewed_interval(1 - a), ratio_interval(a, np.ones(40))
    assert (plain.value, plain.low, plain.high) == pytest.approx((same.value, same.low, same.high))


def test_upper_end_is_the_quantile_of_drawn_weights() -> None:
    """Against the definition: 400,000 draws of exponential weights."""
    rng = np.random.default_rng(3)
    b = rng.gamma(4, 1, 20)
    gain = b * rng.beta(1, 4, 20)
    most = np.argmax(gain - gain.sum() / b.sum() * b)
    grow = max(1.0, b.mean() / b[most])
    g2, b2 = np.append(gain, gain[most] * grow), np.append(b, b[most] * grow)
    weights = rng.exponential(size=(400_000, 21))
    drawn = np.quantile(weights @ g2 / (weights @ b2), 0.975)
    assert upper_end(gain[None], b[None], np.array([stats.norm.ppf(0.975)]), 1.0)[0] == pytest.approx(drawn, abs=1e-3)


@pytest.mark.parametrize(("exposed", "n"), [(1, 32), (4, 32), (8, 64), (32, 256)])
def test_all_or_nothing_is_clopper_pearson(exposed: int, n: int) -> None:
    leaks = np.repeat([1.0, 0.0], [exposed, n - exposed])
    exact = stats.beta.ppf(0.975, exposed + 1, n - exposed)
    assert skewed_interval(leaks).high == pytest.approx(exact, rel=0.01)


def test_with_a_ceiling_even_the_unseen_are_bounded() -> None:
    """No victim of 32 is exposed: with leaks up to 1 possible the bound is that of none in 32, not 0."""
    assert skewed_interval(np.zeros(32)) == Estimate(0, 0, 0)
    assert skewed_interval(np.zeros(32), ceiling=1).high == pytest.approx(1 - 0.025 ** (1 / 32), rel=0.01)
    rng = np.random.default_rng(4)
    rare = np.where(rng.random((1_000, 32)) < 0.03, 1.0, 0.0)
    ends = upper_end(rare, np.ones_like(rare), np.full(1_000, 1.96), 1.0, ceiling=1.0)
    assert (ends < 0.03).mean() <= 0.025


def test_mean_interval_is_students() -> None:
    values = np.random.default_rng(5).normal(size=7)
    expected = stats.t.interval(0.9, 6, values.mean(), stats.sem(values))
    found = mean_interval(values, 0.9)
    assert (found.low, found.high) == pytest.approx(expected)
    assert not mean_interval([0.4]).bounded


def test_scores_average_to_the_pooled_leak() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.gamma(2, 1, (3, 50)), rng.gamma(4, 1, 50)
    assert ratio_scores(a, np.broadcast_to(b, a.shape)).mean(1) == pytest.approx(1 - a.sum(1) / b.sum())


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        mean_interval([0.1, math.nan])
    with pytest.raises(ValueError, match="reference"):
        ratio_interval([1.0, 2.0], [0.0, 0.0])


def test_victims_for_limit() -> None:
    assert victims_for_limit(Estimate(0.02, 0, 0.08), 50, 0.05) == 200
    assert victims_for_limit(Estimate(0.02, 0, 0.04), 50, 0.05) == 50
    assert victims_for_limit(Estimate(0.06, 0, 0.08), 50, 0.05) is None


def attacks(kind: str, rng: np.random.Generator, n: int) -> tuple[Array, Array, float]:
    """Residuals of ten attacks, references, and the largest true leak."""
    reference = rng.gamma(4, 1, n)
    shared, own = rng.normal(size=n), rng.normal(size=(10, n))
    if kind == "one in eight":
        exposed = np.where(rng.random(n) < 1 / 8, 1.0, 0.0)
        leaks, truth = exposed * (1 - 0.1 * np.arange(10)[:, None]) + 0.05 * own, 1 / 8
    else:
        gap = {"perfect defence": 0.0, "one strong attack": 0.5}[kind]
        leaks, truth = 0.2 * (math.sqrt(0.5) * shared + math.sqrt(0.5) * own), 0.0
        leaks[1:] -= gap
    return reference * (1 - leaks), reference, truth


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["perfect defence", "one strong attack", "one in eight"])
def test_maximum_over_attacks(kind: str, n: int) -> None:
    rng = np.random.default_rng(7)
    below, above, bias, naive = [], [], [], []
    for _ in range(250):
        residual, reference, truth = attacks(kind, rng, n)
        found = maximum_over_attacks(residual, reference)
        below.append(truth < found.estimate.low)
        above.append(truth > found.estimate.high)
        bias.append(found.estimate.value - truth)
        naive.append(found.observed - truth)
    assert np.mean(above) <= 0.04
    assert np.mean(below) + np.mean(above) <= 0.07
    if kind != "one in eight":  # all or nothing is Clopper–Pearson, which errs less often than it may
        assert np.mean(below) + np.mean(above) >= 0.015  # 0.03, and the error of 250 cases (0.011)
    if kind == "perfect defence":
        assert np.mean(naive) > 0.01  # what choosing adds
        assert abs(np.mean(bias)) < np.mean(naive) / 5


def test_maximum_of_one_attack_is_its_interval() -> None:
    residual, reference, _ = attacks("one in eight", np.random.default_rng(8), 64)
    found, alone = maximum_over_attacks(residual[:1], reference), ratio_interval(residual[0], reference)
    assert (found.estimate.value, found.estimate.low, found.estimate.high) == pytest.approx(
        (alone.value, alone.low, alone.high)
    )
    assert found.excess == 0


def test_maximum_is_fast() -> None:
    """256 victims, 10 attacks: below 20 ms of processor time, as the fastest of 20 calls."""
    residual, reference, _ = attacks("perfect defence", np.random.default_rng(9), 256)
    took = []
    for _ in range(20):
        start = time.process_time()
        maximum_over_attacks(residual, reference)
        took.append(time.process_time() - start)
    assert min(took) < 0.02


def test_exposed_share_is_bounded_exactly() -> None:
    """Summed over all counts, not simulated: the bound is below the truth in at most 5 % of cases, for every share."""
    for n in (8, 32, 100):
        uppers = np.array([exposed_bound(np.repeat([0.95, 0.2], [k, n - k])).upper for k in range(n + 1)])
        for share in np.linspace(0.005, 0.995, 67):
            missed = stats.binom.pmf(np.arange(n + 1), n, share)[uppers < share].sum()
            assert missed <= 0.05 + 1e-12


def test_exposed_counts_the_worst_attack_for_each_victim() -> None:
    found = exposed_bound(worst_over_attacks([[0.95, 0.1, 0.2], [0.1, 0.91, 0.9]]))
    assert (found.count, found.victims) == (2, 3)
    assert found.share == pytest.approx(2 / 3)


@pytest.mark.parametrize(("limit", "expected"), [(0.05, 59), (0.01, 299), (0.1, 29), (0.5, 5)])
def test_victims_needed(limit: float, expected: int) -> None:
    """The rule of three: 59 victims without an exposed one for 5 %."""
    assert victims_needed(limit) == expected
    assert exposed_bound(np.zeros(expected)).upper <= limit < exposed_bound(np.zeros(expected - 1)).upper
