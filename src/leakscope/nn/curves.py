"""Curves that people read: few points, and means that skip what is not finite."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_of_finite(values: Tensor) -> float | None:
    """The mean of those that are finite; None when none is."""
    finite = values[values.isfinite()]
    return float(finite.mean()) if len(finite) else None


def thinned(curve: list[float], points: int = 25) -> list[float]:
    """At most `points` of a curve, evenly spaced, both ends included."""
    if len(curve) <= points:
        return curve
    return [curve[round(i * (len(curve) - 1) / (points - 1))] for i in range(points)]


def mean_curve(curves: list[list[float]]) -> tuple[float, ...]:
    """The mean of curves of one length, point by point; NaN stands for no value, and points that no curve has go."""
    points = torch.tensor(curves).nanmean(0)
    return tuple(points[points.isfinite()].tolist())
