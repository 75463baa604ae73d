"""Defences compared where they cost the same: frontiers of accuracy and leak, and intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

#: The 97.5 % quantile of Student's t by degrees of freedom; beyond the table the normal one is close enough.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.960


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its 95 % interval (Student's t); one seed has no interval: low and high are None."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)

    @property
    def sign(self) -> int:
        """1 or −1 when the interval lies on one side of 0, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)


def over_seeds(values: Sequence[float]) -> Mean:
    """The mean of one value a seed. Differences of pairs go in as differences."""
    if not values:
        raise ValueError("no values to average; run at least one seed")
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Mean(mean, None, None, 1)
    quantile = _T[count - 2] if count - 2 < len(_T) else _NORMAL
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Mean(mean, mean - half, mean + half, count)


@dataclass(frozen=True)
class Point:
    """What one target keeps and what it gives away."""

    accuracy: float
    leak: float


def frontier(points: Sequence[Point]) -> list[Point]:
    """The lower convex hull, from the least accuracy worth having to the highest.

    A client that picks one of two targets at random for each user is, on average, on the line between them;
    so everything on the hull can be had, and nothing above it is worth having. It also makes a curve of targets
    whose accuracy carries noise into a function of accuracy.
    """
    # Of equal accuracies the least leak counts; then Andrew's monotone chain.
    best: dict[float, float] = {}
    for point in points:
        best[point.accuracy] = min(point.leak, best.get(point.accuracy, math.inf))
    hull: list[Point] = []
    for accuracy, leak in sorted(best.items()):
        new = Point(accuracy, leak)
        while len(hull) > 1 and _cross(hull[-2], hull[-1], new) <= 0:
            hull.pop()
        hull.append(new)
    # Left of its lowest point a hull gives up accuracy and leaks more.
    least = min((point.leak for point in hull), default=0.0)
    while len(hull) > 1 and (hull[0].leak > least or hull[1].leak <= least):
        hull = hull[1:]
    return hull


def _cross(a: Point, b: Point, c: Point) -> float:
    """Above 0 when the path a, b, c turns left."""
    return (b.accuracy - a.accuracy) * (c.leak - a.leak) - (b.leak - a.leak) * (c.accuracy - a.accuracy)


def leak_at(points: Sequence[Point], accuracy: float) -> float:
    """The least leak at which this accuracy can be had; beyond the most accurate target, what that one leaks."""
    hull = frontier(points)
    if not hull:
        raise ValueError("a frontier needs at least one point")
    if accuracy <= hull[0].accuracy:
        return hull[0].leak
    for left, right in pairwise(hull):
        if accuracy <= right.accuracy:
            share = (accuracy - left.accuracy) / (right.accuracy - left.accuracy)
            return left.leak + share * (right.leak - left.leak)
    return hull[-1].leak
