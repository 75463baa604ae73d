"""Numbers, shapes and moments as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakscope.core.results import Summary
from leakscope.report import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.98249, "0.982"), (-0.0421, "−0.042"), (0.0065, "0.0065"), (0.00034, "0.00034"), (3.1e-6, "3.1e-06"),
     (2e-9, "0.000"), (-2e-9, "0.000"), (0.0, "0.000"), (9.99951, "10.0"), (27.349, "27.3"), (1234.5, "1234"),
     (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–"), (None, "–")],
)  # fmt: skip
def test_number(value: float | None, text: str) -> None:
    assert numbers.number(value) == text


@given(st.floats(-1e6, 1e6))
def test_a_number_is_near_what_it_stands_for(value: float) -> None:
    read = float(numbers.number(value).replace("−", "-"))
    assert abs(read - value) <= max(5.001e-4, 0.06 * abs(value)) if abs(value) < 1 else 0.051 * max(1, abs(value))


def test_other_readings() -> None:
    assert numbers.percent(0.9744) == "97.4\u00a0%"
    assert numbers.percent(None) == "–"
    assert numbers.interval(Summary(0.1, 0.2, -0.1, 0.25, 0.4, 8)) == "−0.100 to 0.250"
    assert numbers.interval(Summary(0.1, 0.0, 0.1, 0.1, 0.1, 1)) == "", "one value has no interval"
    assert [numbers.share(value) for value in (0.7, 0.699, 1.0, -0.2)] == [
        "70\u00a0%",
        "70\u00a0%",
        "100\u00a0%",
        "0\u00a0%",
    ]
    assert numbers.shape([3, 64, 64]) == "3×64×64"
    assert [numbers.duration(s) for s in (3.21, 42.4, 93.1, 3599.7, 7325, float("inf"), float("nan"))] == [
        "3.2 s", "42 s", "1 min 33 s", "1 h 0 min", "2 h 2 min", "–", "–",
    ]  # fmt: skip


def test_moments_are_told_in_utc() -> None:
    assert numbers.moment("2026-11-15T13:30:05+01:00") == "15 November 2026, 12:30 UTC"
    assert numbers.moment("2026-11-05T09:05:00") == "5 November 2026, 09:05 UTC"
    assert numbers.moment("yesterday") == "yesterday"
