"""Pieces of Markdown that every page of results shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakscope.core.escaping import markup_free
from leakscope.studies.records import Number


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers are printed to three significant digits, None as a dash."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    """One entry, safe inside a table."""
    if value is None:
        return "–"
    if isinstance(value, Number):
        return interval(value)
    if isinstance(value, float):
        return number(value)
    return markup_free(value)


def number(value: float) -> str:
    """Three significant digits, without an exponent where people expect none."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f}"


def interval(figure: Number) -> str:
    """`mean [low, high]`, or the mean alone where the spread is not known."""
    if figure.low is None or figure.high is None:
        return number(figure.value)
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"


def folded(title: str, text: str) -> str:
    """A block that opens on a click, in Git hosts and in the documentation alike."""
    return f'<details markdown="1"><summary>{title}</summary>\n\n{text}\n\n</details>'
