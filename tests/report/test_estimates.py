"""Intervals against scipy, fronts and matched accuracy against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leakscope.report.estimates import at_accuracy, estimate, front, surely_least, surely_less


def test_the_interval_is_students() -> None:
    values = [0.2, 0.25, 0.31]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert found.half is not None
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), abs=1e-4)
    assert estimate([0.3]).half is None
    assert estimate([0.3, 0.4]).half is None, "too few seeds"
    assert estimate([0.3, 0.4, math.nan]).half is None


def test_pairs_see_what_means_hide() -> None:
    first = {0: 0.10, 1: 0.30, 2: 0.50}
    second = {0: 0.12, 1: 0.33, 2: 0.52}  # always a little more, though the seeds differ far more
    assert surely_less(first, second)
    assert not surely_less(second, first)
    assert not surely_less({0: 0.1}, {0: 0.9}), "one seed decides nothing"
    assert not surely_less({0: 0.1, 1: 0.1001}, {0: 0.9, 1: 0.9001}), "nor do two"
    assert not surely_less({0: 0.1, 1: 0.1, 2: 0.1}, {3: 0.9, 4: 0.9, 5: 0.9}), "nothing in common"
    assert not surely_less(first, dict(first)), "a tie"
    assert not surely_less({0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.1, 1: 0.1, 2: 0.1})


def test_the_best_must_beat_every_rival() -> None:
    rivals = {"a": {0: 0.1, 1: 0.2, 2: 0.3}, "b": {0: 0.4, 1: 0.5, 2: 0.6}}
    assert surely_least(rivals) == "a"
    assert surely_least({**rivals, "c": {0: 0.3, 1: 0.2, 2: 0.1}}) is None
    assert surely_least({"a": rivals["a"]}) is None, "no rival, no winner"


points = st.tuples(st.integers(0, 5).map(float), st.integers(0, 5).map(float))


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), points, max_size=9))
def test_the_front_is_what_nobody_beats(named: dict[str, tuple[float, float]]) -> None:
    def beaten(own: tuple[float, float]) -> bool:
        return any(o[0] >= own[0] and o[1] <= own[1] and o != own for o in named.values())

    assert front(named) == {name for name, own in named.items() if not beaten(own)}


def test_leak_at_an_accuracy_lies_on_the_line() -> None:
    curve = [(0.95, 0.8), (0.90, 0.4), (0.80, 0.1)]
    assert at_accuracy(curve, 0.925) == pytest.approx(0.6)
    assert at_accuracy(curve, 0.80) == pytest.approx(0.1)
    assert at_accuracy(curve, 0.95) == pytest.approx(0.8)
    assert at_accuracy(curve, 0.96) is None
    assert at_accuracy(curve, 0.79) is None
    assert at_accuracy([(0.9, 0.5)], 0.9) is None, "one point is no curve"
    value = at_accuracy([(0.9, 0.5), (0.9, 0.7)], 0.9)
    assert value is not None
    assert math.isfinite(value)
