"""Geometry of the drawings: a bar for one target, leak against accuracy for several, and leak against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.core.results import Summary
from leakscope.report.label_boxes import NEAR, Box, Place, nearest, place_labels, text_width
from leakscope.report.numbers import number
from leakscope.report.targets import Target, is_known, known_leak

WIDTH, HEIGHT = 560, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 18, 58
LINE = 24  # height of a label
#: Letters on a wide and on a narrow screen, where a label is its number alone (report.css).
WIDE, NARROW = 14.0, 19.0
LABELLED = 8  # beyond this many targets a label is the number alone; the key beside the plot names it
LONGEST = 20  # letters of a title
GATE, FLOOR = "limit", "highest floor"
CURVE_WIDTH, CURVE_HEIGHT = 240, 56


@dataclass(frozen=True)
class Bar:
    """Leak on a track from 0 to 1, in per cent of its width."""

    mean: float
    low: float
    high: float
    worst: float
    floor: float | None
    gate: float | None


@dataclass(frozen=True)
class Mark:
    """What is drawn of one target, or of one row of a leaderboard."""

    number: int
    title: str
    accuracy: float
    leak: float
    low: float
    high: float
    doubtful: bool = False


@dataclass(frozen=True)
class Point:
    """A mark on the plot, its interval, and its label (None: no room, the key names it)."""

    mark: Mark
    x: float
    y: float
    low: float
    high: float
    name: str  # behind the number; empty where the number alone is shown
    label: Place | None

    @property
    def led(self) -> bool:
        """Whether a line must lead from the mark to its label."""
        return self.label is not None and math.dist((self.x, self.y), self.end) > NEAR

    @property
    def end(self) -> tuple[float, float]:
        """Where the line to its label ends."""
        x, y = (self.x, self.y) if self.label is None else nearest((self.x, self.y), self.label.box)
        return round(x, 1), round(y, 1)


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Level:
    """A named line across the plot."""

    at: float
    name: str
    x: float
    y: float
    anchor: str


@dataclass(frozen=True)
class Scatter:
    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    floor: Level | None
    gate: Level | None
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True)
class Curve:
    """Leak against CPU seconds, as a line in a small box; the vertical scale is 0 to 1."""

    points: tuple[tuple[float, float], ...]
    first: float  # seconds
    last: float
    start: float  # leak
    end: float
    width: int = CURVE_WIDTH
    height: int = CURVE_HEIGHT

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{x} {y}" for x, y in self.points)


def bar(leak: Summary, floor: float | None, gate: float | None = None) -> Bar:
    known = [leak.mean if math.isnan(end) else end for end in (leak.low, leak.high, leak.worst)]
    low, high, worst = map(_share, known)
    return Bar(_share(leak.mean), low, high, worst, *(None if at is None else _share(at) for at in (floor, gate)))


def _share(value: float) -> float:
    return round(100 * min(1.0, max(0.0, value)), 2)


def marks_of(targets: Sequence[Target]) -> list[Mark]:
    """Those targets whose leak and accuracy are both known."""
    return [
        Mark(
            target.number, target.title, target.record.accuracy, leak.mean,
            leak.mean if math.isnan(leak.low) else leak.low, leak.mean if math.isnan(leak.high) else leak.high,
            target.strongest is not None and target.strongest.doubtful,
        )
        for target in targets
        if (leak := known_leak(target.leak)) is not None
        and target.record.accuracy is not None
        and is_known(target.record.accuracy)
    ]  # fmt: skip


def scatter(marks: Sequence[Mark], floor: float | None, gate: float | None = None) -> Scatter | None:
    """Leak of the strongest attack against accuracy; None with fewer than two targets to compare."""
    if len(marks) < 2:
        return None
    accuracies = [mark.accuracy for mark in marks]
    levels = [level for level in (floor, gate) if level is not None]
    xs = ticks(min(accuracies), min(1.0, max(accuracies)), padding=0.04)
    ys = ticks(min(0.0, *(mark.low for mark in marks), *levels), max(1.0, *(mark.high for mark in marks), *levels))

    def x(accuracy: float) -> float:
        return round(LEFT + (accuracy - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT), 1)

    def y(leak: float) -> float:
        return round(HEIGHT - BOTTOM - (leak - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM), 1)

    lines = (
        None if floor is None else _level(y(floor), FLOOR, "start"),
        None if gate is None else _level(y(gate), GATE, "end"),
    )
    return Scatter(
        points=_labelled([(mark, x(mark.accuracy), y(mark.leak), y(mark.low), y(mark.high)) for mark in marks], lines),
        x_ticks=tuple(Tick(x(value), f"{100 * value:.0f}\u00a0%") for value in xs),
        y_ticks=tuple(Tick(y(value), f"{value:.1f}".replace("-", "−")) for value in ys),
        floor=lines[0],
        gate=lines[1],
    )


def _level(at: float, name: str, anchor: str) -> Level:
    """Its name stands above the line, or below it where there is no room above."""
    below = at - LINE < TOP
    return Level(at, name, LEFT + 6 if anchor == "start" else WIDTH - RIGHT - 6, at + 17 if below else at - 6, anchor)


def _level_box(level: Level) -> Box:
    width = text_width(level.name, NARROW)
    left = level.x if level.anchor == "start" else level.x - width
    return Box(left, level.y - NARROW, left + width, level.y + 5)


def _labelled(
    drawn: Sequence[tuple[Mark, float, float, float, float]], lines: Sequence[Level | None]
) -> tuple[Point, ...]:
    named = len(drawn) <= LABELLED
    names = [_shortened(mark.title) if named else "" for mark, *_ in drawn]
    sizes = []
    for (mark, *_), name in zip(drawn, names, strict=True):
        alone = str(mark.number)
        sizes.append((max(text_width(f"{alone}  {name}", WIDE), text_width(alone, NARROW)) + 4, float(LINE)))
    area = Box(LEFT + 2, 2, WIDTH - RIGHT, HEIGHT - BOTTOM - 2)
    places = place_labels(
        [(x, y) for _, x, y, _, _ in drawn],
        sizes,
        area,
        taken=[_level_box(level) for level in lines if level is not None],
        avoided=[Box(x - 5, min(low, high), x + 5, max(low, high)) for _, x, _, low, high in drawn],
    )
    return tuple(
        Point(mark, x, y, low, high, name, place)
        for (mark, x, y, low, high), name, place in zip(drawn, names, places, strict=True)
    )


def _shortened(title: str) -> str:
    return title if len(title) <= LONGEST else title[: LONGEST - 1] + "…"


def curve(anytime: Sequence[tuple[float, float]]) -> Curve | None:
    """Validation leak against CPU seconds, on a logarithmic scale of time; None without two known points."""
    known = sorted((seconds, leak) for seconds, leak in anytime if seconds > 0 and math.isfinite(leak))
    if len(known) < 2 or known[0][0] == known[-1][0]:
        return None
    first, last = known[0][0], known[-1][0]
    points = tuple(
        (
            round(4 + (CURVE_WIDTH - 8) * math.log(seconds / first) / math.log(last / first), 1),
            round(4 + (CURVE_HEIGHT - 8) * (1 - min(1.0, max(0.0, leak))), 1),
        )
        for seconds, leak in known
    )
    return Curve(points, first, last, known[0][1], known[-1][1])


def curve_words(drawn: Curve) -> str:
    """The curve for those who cannot see it."""
    return (
        f"Leak on validation pictures {number(drawn.start)} after {number(drawn.first)} CPU seconds, "
        f"{number(drawn.end)} after {number(drawn.last)}"
    )


def ticks(low: float, high: float, padding: float = 0.0) -> list[float]:
    """Round values that enclose both ends, three to eight of them."""
    low, high = low - padding, min(1.0, high + padding) if high <= 1 else high
    span = max(high - low, 0.02)
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, math.inf) if span / step <= 6)
    if math.isinf(step):
        return [low, low + span]
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 2) + 1)]
