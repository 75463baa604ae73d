"""The drawings are to scale, and their labels do not overlap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.report.plot import LINE, bar, scatter, ticks
from leakscope.report.targets import highest_floor, targets_of

from .sample import many, sample


def test_marks_lie_where_the_ticks_say() -> None:
    targets = targets_of(sample()[0])
    plot = scatter(targets, 0.118)
    assert plot is not None

    def value(at: float, first: tuple[float, str], last: tuple[float, str]) -> float:
        a, b = (float(text.rstrip("\u00a0%")) for _, text in (first, last))
        return a + (at - first[0]) / (last[0] - first[0]) * (b - a)

    xs = [(tick.at, tick.text) for tick in (plot.x_ticks[0], plot.x_ticks[-1])]
    ys = [(tick.at, tick.text) for tick in (plot.y_ticks[0], plot.y_ticks[-1])]
    for point in plot.points:
        target = targets[point.number - 1]
        assert target.leak is not None
        assert value(point.x, *xs) == pytest.approx(100 * target.facts["accuracy"], abs=0.03)
        assert value(point.y, *ys) == pytest.approx(target.leak["mean"], abs=0.001)
        assert value(point.low, *ys) == pytest.approx(target.leak["low"], abs=0.001)
        assert value(point.high, *ys) == pytest.approx(target.leak["high"], abs=0.001)
    assert plot.floor is not None
    assert value(plot.floor, *ys) == pytest.approx(0.118, abs=0.001)


def test_labels_do_not_overlap() -> None:
    plot = scatter(targets_of(many(24, 1, 28)[0]), None)
    assert plot is not None
    assert len(plot.points) == 8
    for anchor in ("start", "end"):
        heights = sorted(point.label_y for point in plot.points if point.anchor == anchor)
        assert all(below - above >= LINE - 0.2 for above, below in itertools.pairwise(heights))


@given(st.floats(0, 1), st.floats(0, 1))
def test_ticks_enclose_what_they_measure(a: float, b: float) -> None:
    low, high = sorted((a, b))
    marks = ticks(low, high, padding=0.04)
    assert marks[0] <= low
    assert marks[-1] >= high
    assert 3 <= len(marks) <= 9
    steps = [later - earlier for earlier, later in itertools.pairwise(marks)]
    assert max(steps) == pytest.approx(min(steps))


def test_far_off_leaks_still_have_an_axis() -> None:
    marks = ticks(-40.0, 1.0)
    assert marks[0] <= -40
    assert marks[-1] >= 1


def test_a_bar_is_cut_off_at_its_ends() -> None:
    drawn = bar({"mean": -0.3, "low": None, "high": None, "worst": 1.2}, 0.118)
    assert (drawn.mean, drawn.low, drawn.high, drawn.worst, drawn.floor) == (0, 0, 0, 100, 11.8)


def test_the_highest_floor() -> None:
    assert highest_floor(sample()[0]) == ("nearest-public", 0.118)
    assert highest_floor({"floors": {"mean": {"ssim": {"mean": 0.2}}}}) is None
