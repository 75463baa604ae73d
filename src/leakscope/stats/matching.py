"""Leak at matched accuracy: two arms compared at the same accuracy, with seeds as the unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leakscope.stats.distributions import Array
from leakscope.stats.effects import Effect, crossed, paired_effect

#: Accuracies no further apart than this count as equal; no more is ever added to what was measured.
TOLERANCE = 0.005
#: Room for the rounding of accuracies that are sums of ones divided by a count.
_ROUNDING = 1e-9


class UnmatchedError(ValueError):
    """The arms cannot be compared at one accuracy; the message says why."""


@dataclass(frozen=True)
class Point:
    """One trained target of an arm: its accuracy, its leak (one number, or one per victim), and its seed."""

    accuracy: float
    leak: float | Sequence[float] | Array
    seed: int


Curve = tuple[Array, Array]


def _curves(points: Sequence[Point]) -> dict[int, Curve]:
    """For each seed, accuracies in rising order and leaks (points × victims); equal accuracies are averaged."""
    curves = {}
    for seed in sorted({point.seed for point in points}):
        own = [point for point in points if point.seed == seed]
        accuracy, place = np.unique([point.accuracy for point in own], return_inverse=True)
        leaks = np.stack([np.atleast_1d(np.asarray(point.leak, dtype=float)) for point in own])
        share = (place == np.arange(len(accuracy))[:, None]).astype(float)
        curves[seed] = (np.asarray(accuracy, dtype=float), share @ leaks / share.sum(1, keepdims=True))
    return curves


def leak_at(curve: Curve, accuracy: float, tolerance: float = TOLERANCE) -> Array:
    """The leak on the line between the two neighbours a₀ ≤ a ≤ a₁: (1 − w) l₀ + w l₁, w = (a − a₀)/(a₁ − a₀).

    Within the tolerance beyond an end that end's leak counts; further out it raises `UnmatchedError`.
    """
    known, leaks = curve
    if not known[0] - tolerance - _ROUNDING <= accuracy <= known[-1] + tolerance + _ROUNDING:
        reached = f"{known[0]:.1%}" if len(known) == 1 else f"{known[0]:.1%} to {known[-1]:.1%}"
        raise UnmatchedError(f"accuracy {accuracy:.1%} is outside what was measured ({reached})")
    above = int(np.clip(np.searchsorted(known, accuracy), 1, max(len(known) - 1, 1)))
    if len(known) == 1:
        return np.asarray(leaks[0])
    share = float(np.clip((accuracy - known[above - 1]) / (known[above] - known[above - 1]), 0, 1))
    return np.asarray((1 - share) * leaks[above - 1] + share * leaks[above])


def _common(curves: Sequence[Curve]) -> float:
    """Where to compare: at an arm's only accuracy, else at the highest that every curve reaches."""
    single = [float(known[0]) for known, _ in curves if len(known) == 1]
    return min(single) if single else min(float(known[-1]) for known, _ in curves)


def matched_effect(
    left: Sequence[Point], right: Sequence[Point], accuracy: float | None = None, tolerance: float = TOLERANCE
) -> Effect:
    """Leak of left − right at one accuracy, interpolated within each seed; never extrapolated.

    Seeds that both arms have are pairs (the others are left out); without two such seeds, the arms are compared as
    independent samples of seeds at one common accuracy. If no accuracy is given, each pair is compared at an arm's
    only accuracy, or at the highest both reach. A seed that cannot be matched is left out; if that is more than
    half of them, or fewer than two remain, `UnmatchedError` says why.
    """
    ours, theirs = _curves(left), _curves(right)
    if not ours or not theirs:
        raise UnmatchedError("one side has no measured points")
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) < 2:
        at = _common([*ours.values(), *theirs.values()]) if accuracy is None else accuracy
        first, second = (_matched({s: (c,) for s, c in arm.items()}, at, tolerance)[:, 0] for arm in (ours, theirs))
        return paired_effect(first, second, paired=False)
    both = _matched({seed: (ours[seed], theirs[seed]) for seed in shared}, accuracy, tolerance)
    return paired_effect(both[:, 0], both[:, 1])


def matched_pairs(
    left: Sequence[Point], right: Sequence[Point], accuracy: float | None = None, tolerance: float = TOLERANCE
) -> tuple[Array, Array] | None:
    """Both arms at one accuracy, seeds × victims each, as `matched_effect` compares them; None: seeds are not pairs."""
    ours, theirs = _curves(left), _curves(right)
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) < 2:
        return None
    both = _matched({seed: (ours[seed], theirs[seed]) for seed in shared}, accuracy, tolerance)
    return both[:, 0], both[:, 1]


def _matched(pairs: Mapping[int, tuple[Curve, ...]], accuracy: float | None, tolerance: float) -> Array:
    """Seeds × curves × victims at the accuracy, of the seeds that reach it."""
    found, reasons = [], []
    for seed, curves in pairs.items():
        at = _common(curves) if accuracy is None else accuracy
        try:
            found.append(np.stack([leak_at(curve, at, tolerance) for curve in curves]))
        except UnmatchedError as error:
            reasons.append(f"seed {seed}: {error}")
    if len(found) < 2 or len(found) < len(reasons):
        why = "; ".join(reasons) or "a second seed is needed"
        raise UnmatchedError(f"{len(found)} of {len(pairs)} seeds can be compared at one accuracy ({why})")
    return np.stack(found)


def adjusted_effect(left: Sequence[Point], right: Sequence[Point]) -> Effect:
    """Analysis of covariance: the arm's effect δ on the leak at equal accuracy (the main test of TL-DMI).

    leak = α_seed + δ·[arm is left] + β·accuracy + identity + error, by least squares with one slope for both arms.
    Seeds and identities are random: the pseudo-values S δ − (S − 1) δ₍₋ₛ₎ of the jackknife over seeds, one row per
    seed and one column per identity, go through `crossed`. It is linear where `matched_effect` is piecewise, and
    uses all points. Where the arms' accuracies do not overlap, β would extrapolate, and it refuses.
    """
    seeds = sorted({point.seed for point in left} & {point.seed for point in right})
    if len(seeds) < 3:
        raise UnmatchedError(f"{len(seeds)} seeds have both arms; the jackknife needs three")
    ranges = [(min(p.accuracy for p in arm), max(p.accuracy for p in arm)) for arm in (left, right)]
    if max(low for low, _ in ranges) > min(high for _, high in ranges) + TOLERANCE:
        told = " and ".join(f"{low:.1%} to {high:.1%}" for low, high in ranges)
        raise UnmatchedError(f"the arms share no accuracy: {told}")
    arms = [(point, side) for side, arm in ((1.0, left), (0.0, right)) for point in arm if point.seed in seeds]
    seed = np.array([point.seed for point, _ in arms])
    design = np.array([[side, point.accuracy] for point, side in arms])
    leaks = np.stack([np.atleast_1d(np.asarray(point.leak, dtype=float)) for point, _ in arms])
    whole = _arm_effect(design, leaks, seed)
    count = len(seeds)
    pseudo = [
        count * whole - (count - 1) * _arm_effect(*(part[seed != s] for part in (design, leaks, seed))) for s in seeds
    ]
    return crossed(np.stack(pseudo))


def _arm_effect(design: Array, leaks: Array, seed: ArrayLike) -> Array:
    """δ for each victim, by least squares on deviations from each seed's means (a constant for each seed)."""
    _, place = np.unique(seed, return_inverse=True)
    share = (place[:, None] == place).astype(float)
    share /= share.sum(1, keepdims=True)
    inner, outcome = design - share @ design, leaks - share @ leaks
    if np.linalg.matrix_rank(inner) < 2 or not math.isfinite(float(outcome.sum())):
        raise UnmatchedError("the arm and the accuracy cannot be told apart; measure more checkpoints per arm")
    return np.asarray(np.linalg.lstsq(inner, outcome, rcond=None)[0][0])
