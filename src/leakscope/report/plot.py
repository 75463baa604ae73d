"""Geometry of the two drawings: a bar for one target, and leak against accuracy for several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.report.targets import Target, is_known

WIDTH, HEIGHT = 560, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 18, 58
LINE = 20  # label height
LABELLED = 8  # beyond this many targets a label is the number alone; the key beside the plot names it


@dataclass(frozen=True)
class Bar:
    """Leak on a track from 0 to 1, in per cent of its width."""

    mean: float
    low: float
    high: float
    worst: float | None
    floor: float | None


@dataclass(frozen=True)
class Point:
    """A target: its mark, its interval and where its label stands."""

    number: int
    x: float
    y: float
    low: float
    high: float
    label: str
    label_x: float
    label_y: float
    anchor: str


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Scatter:
    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    floor: float | None
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def bar(leak: Mapping[str, Any], floor: float | None) -> Bar:
    mean = leak["mean"]
    ends = (leak.get("low"), leak.get("high"))
    low, high = (mean if end is None else end for end in ends)
    worst = leak.get("worst")
    return Bar(
        _share(mean), _share(low), _share(high), None if worst is None else _share(worst),
        None if floor is None else _share(floor),
    )  # fmt: skip


def _share(value: float) -> float:
    return round(100 * min(1.0, max(0.0, value)), 2)


def scatter(targets: Sequence[Target], floor: float | None) -> Scatter | None:
    """Leak of the strongest attack against accuracy; None with fewer than two targets to compare."""
    known = [
        (target, target.facts["accuracy"], target.leak)
        for target in targets
        if target.leak is not None and is_known(target.leak["mean"]) and is_known(target.facts["accuracy"])
    ]
    if len(known) < 2:
        return None
    lows = [_or(leak.get("low"), leak["mean"]) for _, _, leak in known]
    highs = [_or(leak.get("high"), leak["mean"]) for _, _, leak in known]
    accuracies = [accuracy for _, accuracy, _ in known]
    xs = ticks(min(accuracies), min(1.0, max(accuracies)), padding=0.04)
    ys = ticks(min(0.0, *lows, floor or 0.0), max(1.0, *highs))

    def x(accuracy: float) -> float:
        return round(LEFT + (accuracy - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT), 1)

    def y(leak: float) -> float:
        return round(HEIGHT - BOTTOM - (leak - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM), 1)

    marks = [
        (target, x(accuracy), y(leak["mean"]), y(low), y(high))
        for (target, accuracy, leak), low, high in zip(known, lows, highs, strict=True)
    ]
    return Scatter(
        points=tuple(_labelled(marks)),
        x_ticks=tuple(Tick(x(value), f"{100 * value:.0f}\u00a0%") for value in xs),
        y_ticks=tuple(Tick(y(value), f"{value:.1f}".replace("-", "−")) for value in ys),
        floor=None if floor is None else y(floor),
    )


def _labelled(marks: Sequence[tuple[Target, float, float, float, float]]) -> list[Point]:
    """Labels beside their marks, moved down until no two overlap on the same side."""
    points = []
    taken: dict[str, list[float]] = {"start": [], "end": []}
    for target, x, y, low, high in sorted(marks, key=lambda mark: mark[2]):
        anchor = "start" if x < (LEFT + WIDTH - RIGHT) / 2 else "end"
        at = max([y, *(other + LINE for other in taken[anchor] if other + LINE > y)])
        taken[anchor].append(at)
        short = target.title if len(target.title) <= 20 else target.title[:19] + "…"
        label = f"{target.number}  {short}" if len(marks) <= LABELLED else str(target.number)
        offset = 13 if anchor == "start" else -13
        points.append(Point(target.number, x, y, low, high, label, x + offset, round(at, 1), anchor))
    return points


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def ticks(low: float, high: float, padding: float = 0.0) -> list[float]:
    """Round values that enclose both ends, three to eight of them."""
    low, high = low - padding, min(1.0, high + padding) if high <= 1 else high
    span = max(high - low, 0.02)
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, math.inf) if span / step <= 6)
    if math.isinf(step):
        return [low, low + span]
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 2) + 1)]
