"""Means over seeds with their intervals, paired differences, fronts, and leakage at a common accuracy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

#: 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom.
_STUDENT = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip

#: Fewer seeds than this say nothing about other seeds: no interval, and nothing is surely less.
MIN_SEEDS = 3

BySeed = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % interval; None with too few seeds, or a missing figure."""

    mean: float
    half: float | None
    seeds: int


def student(freedom: int) -> float:
    """The 97.5 % quantile; beyond the table by its expansion in 1/freedom (Abramowitz & Stegun 26.7.5)."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def estimate(values: Sequence[float]) -> Estimate:
    """Student's interval for the mean over seeds."""
    count = len(values)
    if count < MIN_SEEDS or not all(map(math.isfinite, values)):
        return Estimate(fmean(values), None, count)
    return Estimate(fmean(values), student(count - 1) * stdev(values) / math.sqrt(count), count)


def surely_less(first: BySeed, second: BySeed) -> bool:
    """Whether `first` is below `second`: the interval of their differences, seed by seed, excludes a tie.

    Of fewer than three seeds in common nothing can be said.
    """
    shared = sorted(first.keys() & second.keys())
    if len(shared) < MIN_SEEDS:
        return False
    difference = estimate([second[seed] - first[seed] for seed in shared])
    return difference.half is not None and difference.mean > 0 and difference.mean - difference.half > 0


def surely_least(candidates: Mapping[Name, BySeed]) -> Name | None:
    """The one that is surely below every other, if there is one."""
    if len(candidates) < 2:
        return None
    best = min(candidates, key=lambda name: fmean(candidates[name].values()))
    rivals = (name for name in candidates if name != best)
    return best if all(surely_less(candidates[best], candidates[name]) for name in rivals) else None


def front(points: Mapping[Name, tuple[float, float]]) -> set[Name]:
    """Those (accuracy, leak) that no other beats in one without losing in the other."""
    found: set[Name] = set()
    least = math.inf
    by_accuracy = sorted(points.items(), key=lambda item: (-item[1][0], item[1][1]))
    previous: tuple[float, float] | None = None
    for name, point in by_accuracy:
        if point[1] < least or point == previous:
            found.add(name)
            previous, least = point, min(least, point[1])
    return found


def at_accuracy(points: Sequence[tuple[float, float]], accuracy: float) -> float | None:
    """Leak at an accuracy, on the line between the two nearest of a family's (accuracy, leak); None outside them."""
    ordered = sorted(points)
    for (left, first), (right, second) in pairwise(ordered):
        if left <= accuracy <= right:
            share = 0.0 if right == left else (accuracy - left) / (right - left)
            return first + share * (second - first)
    return None
