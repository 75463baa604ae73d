"""Frontiers and intervals against closed forms."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leakscope.studies.matching import Point, frontier, leak_at, over_seeds

UNIT = st.floats(0, 1, allow_subnormal=False).map(lambda value: round(value, 6))
POINTS = st.lists(st.builds(Point, UNIT, UNIT), min_size=1, max_size=8)


@pytest.mark.parametrize("count", [2, 3, 5, 12, 31])
def test_the_interval_is_students(count: int) -> None:
    values = [math.sin(3 * number) for number in range(count)]
    low, high = stats.t.interval(0.95, count - 1, statistics.fmean(values), stats.sem(values))
    got = over_seeds(values)
    assert got.mean == pytest.approx(statistics.fmean(values))
    assert (got.low, got.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


def test_one_seed_decides_nothing() -> None:
    assert over_seeds([2.0]).low is None
    assert over_seeds([2.0]).sign == 0
    assert over_seeds([1.0, 1.1, 0.9]).sign == 1
    assert over_seeds([-1.0, -1.1, -0.9]).sign == -1
    assert over_seeds([-1.0, 1.0, 0.5]).sign == 0


def test_the_hull_by_hand() -> None:
    points = [Point(0.1, 0.0), Point(0.3, 0.5), Point(0.35, 0.4), Point(0.4, 0.8), Point(0.2, 0.9)]
    assert frontier(points) == [Point(0.1, 0.0), Point(0.35, 0.4), Point(0.4, 0.8)]
    assert leak_at(points, 0.225) == pytest.approx(0.2)
    assert leak_at(points, 0.375) == pytest.approx(0.6)
    assert leak_at(points, 0.9) == pytest.approx(0.8)
    assert leak_at(points, 0.0) == 0.0


def test_giving_up_accuracy_never_leaks_more() -> None:
    assert frontier([Point(0.1, 0.9), Point(0.3, 0.2), Point(0.5, 0.6)])[0] == Point(0.3, 0.2)


@given(POINTS, UNIT)
def test_no_mixture_of_two_targets_beats_the_frontier(points: list[Point], share: float) -> None:
    for a in points:
        for b in points:
            accuracy = share * a.accuracy + (1 - share) * b.accuracy
            leak = share * a.leak + (1 - share) * b.leak
            assert leak_at(points, accuracy) <= leak + 1e-9


@given(POINTS)
def test_a_frontier_rises_and_is_made_of_its_points(points: list[Point]) -> None:
    hull = frontier(points)
    assert set(hull) <= set(points)
    assert all(a.accuracy < b.accuracy and a.leak < b.leak for a, b in pairwise(hull))


@pytest.mark.parametrize("call", [lambda: over_seeds([]), lambda: leak_at([], 0.5)])
def test_nothing_to_compare_is_an_error(call: object) -> None:
    with pytest.raises(ValueError, match="at least one"):
        call()  # type: ignore[operator]
