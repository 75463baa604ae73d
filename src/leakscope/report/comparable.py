"""Which results a table may compare: the same victims, attacked by the same attacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from leakscope.report.results import Entry

R = TypeVar("R", bound=Hashable)


def same_victims(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries parted so that at each seed all of one part attacked the same victims; the largest part first.

    Victims may be drawn anew for every seed, so that seeds of one part may differ.
    """
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        counts[entry.result.seed][entry.result.victims] += 1
    place = {
        (seed, victims): number
        for seed, own in counts.items()
        for number, (victims, _) in enumerate(sorted(own.items(), key=lambda item: (-item[1], item[0])))
    }
    parts: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        parts[place[entry.result.seed, entry.result.victims]].append(entry)
    return [parts[number] for number in sorted(parts)]


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
