"""Where the labels of a plot stand: beside their marks, and never on top of each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]

#: Distances from the mark at which a label is tried, and the half of a mark's own size.
DISTANCES, DISC = (13.0, 22.0, 34.0, 50.0, 70.0, 95.0), 8.0
#: A label further than this from its mark is led to it by a line.
NEAR = 16.0
#: What crossing an interval, or a line between a label and its mark, costs: pixels of distance.
CROSSING = 25.0
#: Of more marks than this, a label that has no room near its mark is left out: lines across the plot would not help.
FEW = 40


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def holds(self, point: Point) -> bool:
        return self.left < point[0] < self.right and self.top < point[1] < self.bottom

    def within(self, other: Box) -> bool:
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True)
class Place:
    """A label: the point its text is anchored to (middle of its height), and the box it may fill."""

    x: float
    y: float
    anchor: Anchor
    box: Box


def text_width(text: str, size: float) -> float:
    """An upper estimate of the width of a text in a common sans-serif font, in pixels."""
    return size * sum(map(_em, text))


def _em(letter: str) -> float:
    if not letter.isascii():
        return 1.05
    if letter in "mwMW%@":
        return 0.98
    if letter in "ijlft.,:;'|!()[] -":
        return 0.42
    return 0.75 if letter.isupper() else 0.64


def place_labels(
    marks: Sequence[Point],
    sizes: Sequence[Point],
    area: Box,
    taken: Iterable[Box] = (),
    avoided: Iterable[Box] = (),
) -> list[Place | None]:
    """A place for the label of each mark, inside `area`: as near as possible, clear of `taken`, of marks and labels.

    `avoided` areas may be crossed when no other place is near. None: there is no room.
    """
    discs = [Box(x - DISC, y - DISC, x + DISC, y + DISC) for x, y in marks]
    hard, soft = [*taken, *discs], list(avoided)
    labels: list[Box] = []
    leaders: list[list[Point]] = []
    found: list[Place | None] = [None] * len(marks)
    # The most crowded choose first: they have the fewest places to go.
    for index in sorted(range(len(marks)), key=lambda i: (-_crowd(marks, i), marks[i][1], marks[i][0])):
        mark, size = marks[index], sizes[index]

        def cost(place: Place, mark: Point = mark) -> float:
            line = leader(mark, place.box)
            crossed = sum(any(map(box.holds, line)) for box in labels)
            crossed += sum(any(map(place.box.holds, other)) for other in leaders)
            return _far(place, mark) + CROSSING * (_hits(place.box, soft) + crossed)

        near = (place for place in _near(mark, size) if place.box.within(area))
        best = _cheapest(near, mark, hard, cost)
        if best is None and len(marks) <= FEW:
            best = _cheapest(_anywhere(size, area), mark, hard, cost)
        found[index] = best
        if best is not None:
            hard.append(best.box)
            labels.append(best.box)
            leaders.append(leader(mark, best.box))
    return found


def _cheapest(
    places: Iterable[Place], mark: Point, taken: Sequence[Box], cost: Callable[[Place], float]
) -> Place | None:
    """The free place that costs least. The nearest are asked first, since none costs less than it is far: most of
    a crowded plot is then never looked at."""
    best, least = None, (math.inf, 0)
    for far, number, place in sorted((_far(place, mark), number, place) for number, place in enumerate(places)):
        if far > least[0]:
            break
        if not any(map(place.box.overlaps, taken)) and (own := (cost(place), number)) < least:
            best, least = place, own
    return best


def nearest(mark: Point, box: Box) -> Point:
    """The point of a label's box that is nearest to its mark."""
    return min(max(mark[0], box.left), box.right), min(max(mark[1], box.top), box.bottom)


def leader(mark: Point, box: Box) -> list[Point]:
    """Points on the line that leads from a mark to its label; none where the label stands beside it."""
    end = nearest(mark, box)
    steps = int(math.dist(mark, end) // 3) if math.dist(mark, end) > NEAR else 0
    return [(mark[0] + (end[0] - mark[0]) * i / steps, mark[1] + (end[1] - mark[1]) * i / steps) for i in range(steps)]


def _hits(box: Box, others: Iterable[Box]) -> int:
    return sum(box.overlaps(other) for other in others)


def _crowd(marks: Sequence[Point], index: int) -> int:
    return sum(math.dist(marks[index], other) < 40 for other in marks)


def _far(place: Place, mark: Point) -> float:
    """From the mark to the nearest edge of the label; beside is a little better than above."""
    return math.dist(mark, nearest(mark, place.box)) + (8.0 if place.anchor == "middle" else 0.0)


def _near(mark: Point, size: tuple[float, float]) -> Iterator[Place]:
    x, y = mark
    for distance in DISTANCES:
        for rise in (0.0, -1.0, 1.0):
            yield _placed(x + distance, y + rise * distance, "start", size)
            yield _placed(x - distance, y + rise * distance, "end", size)
        for rise in (-1.0, 1.0):
            yield _placed(x, y + rise * (distance - 4 + size[1] / 2), "middle", size)


def _anywhere(size: tuple[float, float], area: Box) -> Iterator[Place]:
    step = 8.0
    for row in range(int((area.bottom - area.top - size[1]) // step) + 1):
        for column in range(int((area.right - area.left - size[0]) // step) + 1):
            yield _placed(area.left + column * step, area.top + row * step + size[1] / 2, "start", size)


def _placed(x: float, y: float, anchor: Anchor, size: tuple[float, float]) -> Place:
    width, height = size
    left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
    return Place(round(x, 1), round(y, 1), anchor, Box(left, y - height / 2, left + width, y + height / 2))
