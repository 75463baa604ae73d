"""Flags told by their cause: one line per kind of doubt, with every place where it was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leakscope.core.reports import AuditReport
from leakscope.core.results import Flag
from leakscope.core.words import FLAGS, Severity

#: The note that gathers what is wrong with attacks that another one beat on the same target.
WEAKER = "weaker-attacks"
_WEAKER = (
    "These attacks did worse than another on the same target, which raised no such flag: what was measured there is "
    "the other's, and stands."
)
#: An attack that leaks so much less than the strongest has no part in what was measured.
_BEHIND = 0.02


@dataclass(frozen=True)
class FlagGroup:
    """One cause of doubt."""

    id: str
    severity: Severity
    explanation: str
    where: tuple[str, ...]


def flag_groups(flags: Iterable[Flag], beaten: Mapping[str, frozenset[str]] | None = None) -> list[FlagGroup]:
    """Those that block a verdict first, otherwise in the order in which they were raised.

    `beaten` are results that another attack beat, by key, with the flags that the other does not share: what is wrong
    with them is one note, unless it blocks.
    """
    places: dict[str, dict[str, None]] = {}
    weaker: dict[str, list[str]] = {}
    for flag in flags:
        own = frozenset() if beaten is None or flag.result is None else beaten.get(flag.result, frozenset())
        if flag.id in own and not flag.blocks:
            weaker.setdefault(flag.where, []).append(f"{flag.id} ({flag.explanation})")
        else:
            places.setdefault(flag.id, {})[flag.where] = None
    known = {str(name): kind for name, kind in FLAGS.items()}
    groups = [
        FlagGroup(str(name), known[str(name)].severity, known[str(name)].explanation, tuple(where))
        for name, where in places.items()
    ]
    if weaker:
        told = tuple(f"{where}: {'; '.join(dict.fromkeys(causes))}" for where, causes in weaker.items())
        groups.append(FlagGroup(WEAKER, "warns", _WEAKER, told))
    return sorted(groups, key=lambda group: group.severity != "blocks")


def causes(report: AuditReport) -> list[FlagGroup]:
    """The flags of an audit by cause."""
    beaten: dict[str, frozenset[str]] = {}
    for target in report.targets:
        results = report.of_target(target.record.key)
        best = max(results, key=lambda result: result.leak, default=None)
        for result in results:
            if best is not None and result.leak < best.leak - _BEHIND:
                shared = {str(flag.id) for flag in best.flags}
                beaten[result.key] = frozenset(str(flag.id) for flag in result.flags) - shared
    return flag_groups(report.flags, beaten)


#: Places that are named after a reason; all of them stand among the flags.
_PLACES = 3


def told(report: AuditReport) -> tuple[str, ...]:
    """The reasons of the verdict in words: a flag by what it means, once, with where it was raised."""
    raised = {flag.reason: flag for flag in report.flags if flag.blocks}
    places: dict[str, list[str]] = {}
    for reason in report.reasons:
        flag = raised.get(reason)
        own = places.setdefault(reason if flag is None else FLAGS[flag.id].explanation, [])
        own += [] if flag is None else [flag.where]
    return tuple(f"{text} ({_listed(where)})" if where else text for text, where in places.items())


def _listed(where: list[str]) -> str:
    more = len(where) - _PLACES
    return "; ".join(where[:_PLACES]) + (f"; and {more} more" if more > 0 else "")
