"""Which attacks a table may compare: those that every row was attacked by."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

R = TypeVar("R", bound=Hashable)


def common_attacks(rows: Mapping[R, set[Hashable]]) -> frozenset[Hashable]:
    """The attacks that all rows share.

    Where there is none, the one that most rows were attacked by: rows without it are not ranked.
    """
    shared = frozenset.intersection(*(frozenset(attacks) for attacks in rows.values()))
    if shared:
        return shared
    counts: dict[Hashable, int] = {}
    for attacks in rows.values():
        for attack in attacks:
            counts[attack] = counts.get(attack, 0) + 1
    return frozenset({max(counts, key=lambda attack: (counts[attack], str(attack)))})


def comparable_seeds(own: Mapping[Hashable, Mapping[int, object]], common: frozenset[Hashable]) -> frozenset[int]:
    """The seeds at which a row was attacked by all of the common attacks."""
    if not common <= own.keys():
        return frozenset()
    return frozenset.intersection(*(frozenset(own[attack]) for attack in common))
