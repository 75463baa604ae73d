"""Controls as the page lists them: one line for each attack, however many targets it met."""

from __future__ import annotations

from leakscope.core.reports import ControlReport
from leakscope.core.results import ControlResult
from leakscope.core.words import Control

#: Controls whose figure must stay below what is required.
AT_MOST = frozenset({Control.NEGATIVE, Control.BUDGET})


def nearest(control: ControlReport) -> list[ControlResult]:
    """For every attack, and every place that is named, the result that failed or came nearest to failing."""
    sign = 1 if control.kind in AT_MOST else -1
    found: dict[tuple[str, str], ControlResult] = {}
    for result in control.results:
        which = (result.attack, result.where)
        best = found.get(which)
        if best is None or (not result.passed, sign * result.value) > (not best.passed, sign * best.value):
            found[which] = result
    return list(found.values())
