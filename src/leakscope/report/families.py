"""Families of defences, which differ in strength only, compared where they cost equally much accuracy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.report.estimates import BySeed, Estimate, at_accuracy, estimate, surely_least

#: Points of accuracy below the undefended twin at which families of defences are compared.
LEVELS = (0.01, 0.03, 0.05)


@dataclass(frozen=True)
class Standing:
    """One defence: what leaks (the lower the better) and how accurate it is, by seed."""

    kinds: tuple[str, ...]
    undefended: bool
    leak: BySeed
    accuracy: BySeed
    doubtful: bool = False


@dataclass(frozen=True)
class Family:
    """Defences of the same kinds, at accuracies a little below the twin's; None: not reached."""

    name: str
    settings: int
    matched: dict[float, tuple[Estimate, bool] | None]  # with whether it is surely the least
    doubtful: bool  # one of its settings is in doubt, so that it is never called the least


def families(standings: Sequence[Standing], sign: float) -> list[Family]:
    """Leak of every family where it costs as much accuracy as the others.

    A family is a curve from its undefended twin through its settings. Where it costs more, or less, than
    a level asks for at any seed, it has no value there.
    """
    twin = next((standing for standing in standings if standing.undefended), None)
    if twin is None or not twin.accuracy:
        return []
    members: dict[tuple[str, ...], list[Standing]] = defaultdict(list)
    for standing in standings:
        if not standing.undefended and standing.accuracy:
            members[standing.kinds].append(standing)
    doubtful = {kinds: any(s.doubtful for s in (twin, *own)) for kinds, own in members.items()}
    curves = {
        level: {kinds: values for kinds, own in members.items() if (values := _curve(twin, own, level))}
        for level in LEVELS
    }
    best = {
        level: surely_least({kinds: values for kinds, values in found.items() if not doubtful[kinds]})
        for level, found in curves.items()
    }
    listed = []
    for kinds, own in sorted(members.items()):
        matched: dict[float, tuple[Estimate, bool] | None] = {}
        for level, found in curves.items():
            leaks = [sign * value for value in found.get(kinds, {}).values()]
            matched[level] = (estimate(leaks), best[level] == kinds) if leaks else None
        if any(matched.values()):  # a family that reaches no level would be an empty line
            listed.append(Family("+".join(kinds), len(own), matched, doubtful[kinds]))
    return listed


def _curve(twin: Standing, own: Sequence[Standing], level: float) -> dict[int, float]:
    """By seed the leak at the twin's accuracy less `level`; empty unless every seed reaches it."""
    values = {}
    for seed, top in twin.accuracy.items():
        points = [(s.accuracy[seed], s.leak[seed]) for s in (twin, *own) if seed in s.leak and seed in s.accuracy]
        value = at_accuracy(points, top - level)
        if value is not None:
            values[seed] = value
    return values if values.keys() == twin.accuracy.keys() else {}
