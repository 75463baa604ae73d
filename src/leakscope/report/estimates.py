"""Means over seeds with their intervals, paired differences, fronts, and leakage at a common accuracy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

import numpy as np

from leakscope.stats.intervals import mean_interval
from leakscope.stats.matching import UnmatchedError, leak_at

Name = TypeVar("Name", bound=Hashable)

#: Fewer seeds than this say nothing about other seeds: no interval, and nothing is surely less.
MIN_SEEDS = 3

BySeed = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % interval; None with too few seeds, or a missing figure."""

    mean: float
    half: float | None
    seeds: int


def estimate(values: Sequence[float]) -> Estimate:
    """Student's interval for the mean over seeds."""
    count = len(values)
    if count < MIN_SEEDS or not all(map(math.isfinite, values)):
        return Estimate(fmean(values), None, count)
    found = mean_interval(values)
    return Estimate(found.value, found.high - found.value, count)


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
    if len(points) < 2:
        return None
    known = sorted({point[0] for point in points})
    leaks = [fmean(leak for at, leak in points if at == own) for own in known]
    try:
        return float(leak_at((np.array(known), np.array(leaks)[:, None]), accuracy, tolerance=0.0)[0])
    except UnmatchedError:
        return None
