"""Leak at matched accuracy against closed forms and simulated truths."""

from __future__ import annotations

import numpy as np
import pytest

from leakscope.stats import Point, UnmatchedError, adjusted_effect, matched_effect, paired_effect


def line(seed: int, accuracies: list[float], slope: float, start: float) -> list[Point]:
    return [Point(a, start + slope * a, seed) for a in accuracies]


def test_lines_are_compared_where_both_reach() -> None:
    """left = 1·a, right = 0.5·a + 0.1: at 0.8, the highest accuracy of both, left − right = 0.3."""
    left = [p for s in range(3) for p in line(s, [0.5, 0.75, 0.9], 1, 0)]
    right = [p for s in range(3) for p in line(s, [0.4, 0.8], 0.5, 0.1)]
    assert matched_effect(left, right).value == pytest.approx(0.3)
    assert matched_effect(left, right, 0.6).value == pytest.approx(0.2)


def test_only_the_neighbours_count() -> None:
    left = [Point(a, leak, s) for s in (0, 1) for a, leak in ((0.5, 9), (0.7, 0.2), (0.8, 0.4), (0.9, 9))]
    right = [Point(0.75, 0.1, s) for s in (0, 1)]
    assert matched_effect(left, right).value == pytest.approx(0.2)


def test_nothing_is_extrapolated() -> None:
    left = [p for s in range(3) for p in line(s, [0.5, 0.6], 1, 0)]
    right = [Point(0.9, 0.1, s) for s in range(3)]
    with pytest.raises(UnmatchedError, match=r"90.0% is outside what was measured \(50.0% to 60.0%\)"):
        matched_effect(left, right)
    with pytest.raises(UnmatchedError, match="outside"):
        matched_effect(left, left, accuracy=0.607)
    near = matched_effect(left, [Point(0.604, 0.1, s) for s in range(3)])
    assert near.value == pytest.approx(0.5)  # within the tolerance the end itself, not the line beyond it


def test_two_single_targets_match_within_the_tolerance() -> None:
    left, right = [[Point(a, leak, s) for s in range(3)] for a, leak in ((0.803, 0.5), (0.8, 0.2))]
    assert matched_effect(left, right).value == pytest.approx(0.3)
    with pytest.raises(UnmatchedError):
        matched_effect(left, right, tolerance=0.001)


def test_a_seed_that_cannot_be_matched_is_left_out() -> None:
    left = [p for s in range(3) for p in line(s, [0.5, 0.9], 1, 0)] + line(3, [0.2, 0.3], 1, 0)
    right = [Point(0.7, 0.1 * s, s) for s in range(4)]
    assert matched_effect(left, right).value == pytest.approx(0.7 - 0.1)


def test_one_seed_is_not_enough() -> None:
    with pytest.raises(UnmatchedError, match="second seed"):
        matched_effect(line(0, [0.5, 0.9], 1, 0), line(0, [0.5, 0.9], 1, 0))


def test_victims_go_through_the_same_weights() -> None:
    rng = np.random.default_rng(0)
    low, high, own = rng.normal(size=(3, 4, 20))
    left = [Point(0.6, low[s], s) for s in range(4)] + [Point(0.8, high[s], s) for s in range(4)]
    right = [Point(0.65, own[s], s) for s in range(4)]
    expected = paired_effect(0.75 * low + 0.25 * high, own)
    found = matched_effect(left, right)
    assert (found.value, found.error) == pytest.approx((expected.value, expected.error))


def test_other_seeds_are_independent_samples() -> None:
    left = [p for s in range(3) for p in line(s, [0.5, 0.9], 1, 0.01 * s)]
    right = [p for s in range(10, 14) for p in line(s, [0.5, 0.9], 0.5, 0)]
    found = matched_effect(left, right, 0.8)
    assert found.value == pytest.approx(0.8 + 0.01 - 0.4)
    assert found.error == pytest.approx(0.01 / np.sqrt(3))


def arms(rng: np.random.Generator, seeds: int, effect: float) -> tuple[list[Point], list[Point]]:
    """Four checkpoints per arm and seed; leak rises with accuracy, seeds and identities have effects of their own."""
    sides: list[list[Point]] = []
    identity = 0.1 * rng.normal(size=30)
    for arm, shift in ((1, effect), (0, 0.0)):
        points = []
        for seed in range(seeds):
            own = 0.05 * np.random.default_rng(1000 * seed + int(1e6 * abs(identity[0]))).normal()
            extra = 0.02 * rng.normal()
            for accuracy in np.array([0.6, 0.7, 0.8, 0.9]) - 0.1 * arm + 0.02 * rng.normal(size=4):
                leak = 0.5 * accuracy + shift + own + extra + identity + 0.05 * rng.normal(size=30)
                points.append(Point(float(accuracy), leak, seed))
        sides.append(points)
    return sides[0], sides[1]


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_the_adjusted_effect_covers_the_truth(seeds: int) -> None:
    """TL-DMI's main test. The left arm is 0.1 less accurate, which alone lowers its leak by 0.05 more than δ does."""
    rng = np.random.default_rng(seeds)
    found = [adjusted_effect(*arms(rng, seeds, -0.05)) for _ in range(250)]
    assert np.mean([e.value for e in found]) == pytest.approx(-0.05, abs=0.003)
    p = np.array([e.p_below(-0.05) for e in found])  # "less than δ" is false, and −δ itself is the truth
    assert 0.92 <= np.mean((p >= 0.025) & (p <= 0.975)) <= 0.99  # 250 cases: an error of 0.014
    assert np.mean(p <= 0.025) <= 0.025 + 3 * 0.01


def test_the_adjusted_effect_is_none_where_accuracy_explains_all() -> None:
    """No effect of the arm: the difference of raw means is −0.05, the adjusted one 0."""
    rng = np.random.default_rng(1)
    pairs = [arms(rng, 5, 0.0) for _ in range(200)]
    raw = [np.mean([np.mean(p.leak) for p in a]) - np.mean([np.mean(p.leak) for p in b]) for a, b in pairs]
    assert np.mean(raw) == pytest.approx(-0.05, abs=0.01)
    found = [adjusted_effect(*pair) for pair in pairs]
    assert np.mean([e.value for e in found]) == pytest.approx(0, abs=0.003)
    assert np.mean([e.p_below(0.0) <= 0.025 for e in found]) <= 0.025 + 3 * 0.011


def test_without_noise_the_adjusted_effect_is_exact() -> None:
    left = [p for s in range(3) for p in line(s, [0.5, 0.7, 0.9], 0.4, 0.1 * s - 0.25)]
    right = [p for s in range(3) for p in line(s, [0.6, 0.8], 0.4, 0.1 * s)]
    assert adjusted_effect(left, right).value == pytest.approx(-0.25)


def test_the_adjusted_effect_refuses_what_it_cannot_part() -> None:
    left = [p for s in range(3) for p in line(s, [0.5, 0.6], 1, 0)]
    right = [p for s in range(3) for p in line(s, [0.8, 0.9], 1, 0)]
    with pytest.raises(UnmatchedError, match=r"share no accuracy: 50.0% to 60.0% and 80.0% to 90.0%"):
        adjusted_effect(left, right)
    with pytest.raises(UnmatchedError, match="three"):
        adjusted_effect(left[:4], right[:4])
    single = [[Point(0.5, 0.1 * s, s) for s in range(3)], [Point(0.5, 0.2 * s, s) for s in range(3)]]
    with pytest.raises(UnmatchedError, match="told apart"):
        adjusted_effect(*single)
