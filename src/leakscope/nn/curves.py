"""Curves that people read: few points, and means that skip what is not finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mean_where_finite(values: Tensor) -> Tensor:
    """The mean of those that are finite, NaN when none is: a scalar that nobody has waited for."""
    return torch.where(values.isfinite(), values, torch.nan).nanmean()


def mean_of_finite(values: Tensor) -> float | None:
    """The same as a number, which an accelerator must finish first; None when none is finite."""
    mean = float(mean_where_finite(values))
    return mean if math.isfinite(mean) else None


def thinned(curve: list[float], points: int = 25) -> list[float]:
    """At most `points` of a curve, evenly spaced, both ends included."""
    if len(curve) <= points:
        return curve
    return [curve[round(i * (len(curve) - 1) / (points - 1))] for i in range(points)]


def mean_curve(curves: list[list[float]]) -> tuple[float, ...]:
    """The mean of curves of one length, point by point; NaN stands for no value, and points that no curve has go."""
    points = torch.tensor(curves).nanmean(0)
    return tuple(points[points.isfinite()].tolist())
