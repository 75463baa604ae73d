"""Numbers as people read them; the same in every rendering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from leakscope.core.results import Summary

NOTHING = "–"


def number(value: float | None) -> str:
    """Three decimals below ten, fewer above; two significant digits where three decimals would say too little."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if 5e-7 <= size < 0.00995:  # below that lies rounding error
        text = f"{size:.2g}"
    else:
        decimals = 3 if size < 9.9995 else 1 if size < 999.95 else 0
        text = f"{size:.{decimals}f}"
    return "−" + text if value < 0 and float(text) != 0 else text


def percent(value: float | None) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{100 * value:.1f}\u00a0%"


def share(value: float) -> str:
    """A share as a whole percentage, rounded as the verdict's sentence rounds it."""
    return f"{100 * max(value, 0.0):.0f}\u00a0%"


def interval(summary: Summary) -> str:
    """`low to high`, or nothing when the score has no interval (one number for a whole set)."""
    known = summary.n > 1 and not math.isnan(summary.low) and not math.isnan(summary.high)
    return f"{number(summary.low)} to {number(summary.high)}" if known else ""


def shape(sizes: Sequence[int]) -> str:
    return "×".join(str(size) for size in sizes)


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def utc(created: str) -> datetime | None:
    """The moment an ISO time names (taken as UTC when it does not say), or None when it names none."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def moment(created: str) -> str:
    when = utc(created)
    return created if when is None else f"{when.day} {when:%B %Y, %H:%M} UTC"
