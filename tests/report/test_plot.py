"""The drawings are to scale, and their labels do not overlap."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.results import Summary
from leakscope.report.label_boxes import Box, leader, place_labels
from leakscope.report.plot import LABELLED, Mark, Scatter, bar, curve, marks_of, scatter, ticks
from leakscope.report.targets import highest_floor, targets_of

from .sample import sample, summary


def test_marks_lie_where_the_ticks_say() -> None:
    targets = targets_of(sample()[0])
    plot = scatter(marks_of(targets), 0.118, 0.2)
    assert plot is not None

    def value(at: float, first: tuple[float, str], last: tuple[float, str]) -> float:
        a, b = (float(text.rstrip("\u00a0%")) for _, text in (first, last))
        return a + (at - first[0]) / (last[0] - first[0]) * (b - a)

    xs = [(tick.at, tick.text) for tick in (plot.x_ticks[0], plot.x_ticks[-1])]
    ys = [(tick.at, tick.text) for tick in (plot.y_ticks[0], plot.y_ticks[-1])]
    for point in plot.points:
        target = targets[point.mark.number - 1]
        assert target.leak is not None
        assert target.record.accuracy is not None
        assert value(point.x, *xs) == pytest.approx(100 * target.record.accuracy, abs=0.03)
        assert value(point.y, *ys) == pytest.approx(target.leak.mean, abs=0.001)
        assert value(point.low, *ys) == pytest.approx(target.leak.low, abs=0.001)
        assert value(point.high, *ys) == pytest.approx(target.leak.high, abs=0.001)
    assert plot.floor is not None
    assert plot.gate is not None
    assert value(plot.floor.at, *ys) == pytest.approx(0.118, abs=0.001)
    assert value(plot.gate.at, *ys) == pytest.approx(0.2, abs=0.001)


def labels_apart(plot: Scatter) -> None:
    """No label on another, on a mark, or outside the picture."""
    boxes = [point.label.box for point in plot.points if point.label is not None]
    discs = [Box(point.x - 6, point.y - 6, point.x + 6, point.y + 6) for point in plot.points]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert not any(box.overlaps(disc) for disc in discs)
        assert box.within(Box(0, 0, plot.width, plot.height))


def marks(places: list[tuple[float, float]]) -> list[Mark]:
    title = "bottleneck:channels=4+gaussian:sigma=0.5"
    return [
        Mark(i, title if i % 2 else "No defence", accuracy, leak, leak - 0.02, leak + 0.02)
        for i, (accuracy, leak) in enumerate(places, start=1)
    ]


@pytest.mark.parametrize("count", [2, 8, 20])
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.1, 0.5])
def test_labels_do_not_overlap(count: int, spread: float) -> None:
    """From all marks in one place to marks all over the plot."""
    places = [(0.9 - spread * (i * 7 % count) / count, 0.5 + spread * (i * 3 % count) / count) for i in range(count)]
    plot = scatter(marks(places), 0.0, 0.2)
    assert plot is not None
    assert all(point.label is not None for point in plot.points), "there is room for all of them"
    assert all(bool(point.name) == (count <= LABELLED) for point in plot.points)
    labels_apart(plot)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 1), st.floats(-0.2, 1)), min_size=2, max_size=24))
def test_labels_do_not_overlap_wherever_marks_lie(places: list[tuple[float, float]]) -> None:
    plot = scatter(marks(places), 0.0, 0.2)
    assert plot is not None
    labels_apart(plot)
    for point in plot.points:
        if point.label is not None:
            x, y = point.end
            near = abs(x - point.x) <= 16 and abs(y - point.y) <= 16
            assert near or point.led, "a label that stands far off is led to its mark"


def test_a_label_without_room_is_left_out() -> None:
    area = Box(0, 0, 60, 30)
    found = place_labels([(30, 15)] * 3, [(50, 20)] * 3, area)
    assert found == [None] * 3, "the mark itself stands in the way of a label as wide as the picture"
    assert place_labels([(10, 15)], [(20, 20)], area)[0] is not None


def test_hundreds_of_marks_in_one_place_take_no_minutes() -> None:
    """Forty took six seconds, six hundred some minutes."""
    began = time.process_time()
    plot = scatter(marks([(0.5 + i / 1e6, 0.5) for i in range(300)]), 0.0, 0.2)
    assert time.process_time() - began < 20
    assert plot is not None
    labels_apart(plot)


def test_a_leading_line_keeps_off_other_labels() -> None:
    """The plot in which it once ran through a name: two rows of marks, close together."""
    places = [(0.90, 0.982), (0.928, 0.871), (0.924, 0.613), (0.92, 0.313)]
    places += [(0.916, 0.982), (0.912, 0.871), (0.908, 0.613), (0.904, 0.313)]
    plot = scatter(marks(places), 0.0, 0.2)
    assert plot is not None
    labels = [point.label.box for point in plot.points if point.label is not None]
    lines = [leader((point.x, point.y), point.label.box) for point in plot.points if point.label is not None]
    assert any(lines), "some label stands off"
    assert not [box for box in labels for line in lines if any(map(box.holds, line))]


def test_overlap_is_what_it_says() -> None:
    assert Box(0, 0, 2, 2).overlaps(Box(1, 1, 3, 3))
    assert not Box(0, 0, 2, 2).overlaps(Box(2, 0, 3, 2)), "touching is allowed"
    assert Box(0, 0, 4, 4).overlaps(Box(1, 1, 2, 2))


def test_the_course_of_an_attack_is_to_scale() -> None:
    drawn = curve([(1.0, 0.0), (10.0, 0.5), (100.0, 1.0)])
    assert drawn is not None
    (left, bottom), (middle, half), (right, top) = drawn.points
    assert middle == pytest.approx((left + right) / 2, abs=0.1), "time is logarithmic"
    assert half == pytest.approx((top + bottom) / 2, abs=0.1), "leak is not"
    assert top < bottom
    assert curve([(1.0, 0.5)]) is None
    assert curve([(1.0, 0.5), (2.0, float("nan"))]) is None
    assert curve([]) is None


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
    unknown = float("nan")
    drawn = bar(Summary(-0.3, 0.0, unknown, unknown, 1.2, 8), 0.118, 0.2)
    assert (drawn.mean, drawn.low, drawn.high, drawn.worst, drawn.floor, drawn.gate) == (0, 0, 0, 100, 11.8, 20)
    assert bar(Summary(0.5, 0.0, 0.4, 0.6, 0.7, 8), None).gate is None


def test_the_highest_floor_is_no_oracle() -> None:
    assert highest_floor(sample()[0].floors) == ("class-mean", 0.0)
    assert highest_floor({"nearest-public": {"leak": summary(0.5, 0.1, 0.7)}}) is None
    assert highest_floor({"mean": {"ssim": summary(0.2, 0.1, 0.3)}}) is None
