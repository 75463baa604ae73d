"""Curves lose points and what is not finite, never their ends."""

from __future__ import annotations

import math

import torch

from leakscope.nn.curves import mean_curve, mean_of_finite, thinned


def test_only_finite_values_are_averaged() -> None:
    assert mean_of_finite(torch.tensor([1.0, math.nan, 3.0, math.inf])) == 2
    assert mean_of_finite(torch.tensor([math.nan, -math.inf])) is None
    assert mean_of_finite(torch.empty(0)) is None


def test_a_thinned_curve_keeps_its_ends_and_its_order() -> None:
    assert thinned([3.0, 1.0]) == [3.0, 1.0]
    curve = [float(i) for i in range(101)]
    assert thinned(curve) == [round(i * 100 / 24) for i in range(25)]
    assert thinned(curve, points=2) == [0.0, 100.0]


def test_a_mean_curve_skips_what_a_curve_lacks() -> None:
    assert mean_curve([[4.0, math.nan, 1.0], [2.0, math.nan, math.nan]]) == (3.0, 1.0)
    assert mean_curve([[], []]) == ()
