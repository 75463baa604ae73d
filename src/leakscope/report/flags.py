"""Flags told by their cause: one line per kind of doubt, with every place where it was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leakscope.core.results import Flag
from leakscope.core.words import FLAGS, FlagId, Severity


@dataclass(frozen=True)
class FlagGroup:
    """One cause of doubt."""

    id: FlagId
    where: tuple[str, ...]

    @property
    def severity(self) -> Severity:
        return FLAGS[self.id].severity

    @property
    def explanation(self) -> str:
        return FLAGS[self.id].explanation


def flag_groups(flags: Iterable[Flag]) -> list[FlagGroup]:
    """Those that block a verdict first, otherwise in the order in which they were raised."""
    places: dict[FlagId, dict[str, None]] = {}
    for flag in flags:
        places.setdefault(flag.id, {})[flag.where] = None
    groups = [FlagGroup(name, tuple(where)) for name, where in places.items()]
    return sorted(groups, key=lambda group: group.severity != "blocks")
