"""The weight of a penalty."""

from __future__ import annotations


def refuse_weight(weight: float) -> None:
    """A negative weight rewards leakage; an infinite one is a typing error."""
    if not 0 <= weight < float("inf"):
        raise ValueError("weight must be 0 (no defence) or more, and finite")


def refuse_not_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be above 0 and finite, not {value}")
