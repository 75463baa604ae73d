"""The leaderboard: for each setting a table of rivals, with what every attack rebuilt from them."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from leakscope.report.estimates import BySeed, Estimate, at_accuracy, estimate, front, surely_least
from leakscope.report.results import Result, Results

Group = Literal["defense", "model", "cut"]
#: Points of accuracy below the undefended twin at which families of defences are compared.
LEVELS = (0.01, 0.03, 0.05)
#: What makes two results comparable, beside what the rows show.
_PLACE = ("data", "model", "cut", "defense", "threat")


@dataclass(frozen=True)
class Cell:
    """One number of a table, and the results behind it, one a seed."""

    number: int  # its address on the page
    value: Estimate
    worst: float
    results: tuple[Result, ...]
    best: bool = False  # surely below every rival


@dataclass(frozen=True)
class Row:
    """One rival."""

    name: str
    accuracy: Estimate | None
    strongest: Cell  # the attack that rebuilt most, chosen for each seed
    attacks: dict[str, Cell]
    on_front: bool


@dataclass(frozen=True)
class Family:
    """Defences that differ in strength only, at accuracies a little below the twin's; None: not reached."""

    name: str
    settings: int
    matched: dict[float, tuple[Estimate, bool] | None]  # with whether it is surely the least


@dataclass(frozen=True)
class Section:
    """Rivals that can be compared: same pictures, same victims, same threat model."""

    place: dict[str, str]
    setting: str
    victims: int
    attacks: list[str]
    rows: list[Row]
    families: list[Family]

    @property
    def title(self) -> str:
        place = self.place
        network = " at ".join(place[name] for name in ("model", "cut") if name in place)
        defense = f"defence {place['defense']}" if "defense" in place else ""
        return ", ".join(part for part in (place["data"], network, defense) if part)


def sections(found: Results, group: Group = "defense") -> list[Section]:
    """The tables of all settings, the largest first."""
    place = tuple(name for name in _PLACE if name != group)
    settings: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in found.rows:
        settings[(*(result.named(name) for name in place), result.setting, result.victims)].append(result)
    cells = _Counter()
    made = [
        _section(dict(zip(place, key, strict=False)), own, group, found.more_leak, cells)
        for key, own in sorted(settings.items())
    ]
    return sorted(made, key=lambda section: -len(section.rows))


class _Counter:
    """Numbers cells in the order they are made."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def _section(place: dict[str, str], own: Iterable[Result], group: Group, more_leak: str, cells: _Counter) -> Section:
    sign = 1.0 if more_leak == "high" else -1.0  # what is compared is the lower the better
    table: dict[str, dict[str, dict[int, Result]]] = defaultdict(lambda: defaultdict(dict))
    for result in own:  # the same reconstructions under another list of metrics score the same
        table[result.named(group)][result.attack].setdefault(result.seed, result)
    first = next(iter(next(iter(next(iter(table.values())).values())).values()))
    attacks = sorted({attack for row in table.values() for attack in row})
    leaks: dict[str, dict[str, BySeed]] = {
        name: {attack: {seed: sign * r.mean for seed, r in by_seed.items()} for attack, by_seed in row.items()}
        for name, row in table.items()
    }
    strongest = {name: _strongest(row, sign) for name, row in table.items()}
    most = {name: {seed: sign * r.mean for seed, r in chosen.items()} for name, chosen in strongest.items()}
    accuracies = {name: _accuracies(row) for name, row in table.items()}
    on_front = front(
        {name: (fmean(accuracies[name].values()), fmean(most[name].values())) for name in table if accuracies[name]}
    )
    best = {a: surely_least({name: row[a] for name, row in leaks.items() if a in row}) for a in attacks}
    best_of_all = surely_least(most)
    rows = [
        Row(
            name=name,
            accuracy=estimate(list(accuracies[name].values())) if accuracies[name] else None,
            strongest=_cell(strongest[name], sign, name == best_of_all, cells),
            attacks={a: _cell(row[a], sign, name == best[a], cells) for a in attacks if a in row},
            on_front=name in on_front,
        )
        for name, row in table.items()
    ]
    rows.sort(key=lambda row: sign * row.strongest.value.mean)
    families = _families(most, accuracies, sign) if group == "defense" else []
    return Section(place, first.setting, first.count, attacks, rows, families)


def _strongest(row: Mapping[str, Mapping[int, Result]], sign: float) -> dict[int, Result]:
    """For each seed the attack that rebuilt most."""
    chosen: dict[int, Result] = {}
    for by_seed in row.values():
        for seed, result in by_seed.items():
            if seed not in chosen or sign * result.mean > sign * chosen[seed].mean:
                chosen[seed] = result
    return chosen


def _accuracies(row: Mapping[str, Mapping[int, Result]]) -> dict[int, float]:
    return {
        seed: result.accuracy
        for by_seed in row.values()
        for seed, result in by_seed.items()
        if result.accuracy is not None
    }


def _cell(by_seed: Mapping[int, Result], sign: float, best: bool, cells: _Counter) -> Cell:
    results = tuple(result for _, result in sorted(by_seed.items()))
    worst = max if sign > 0 else min
    return Cell(cells.next(), estimate([r.mean for r in results]), worst(r.worst for r in results), results, best)


def family(defense: str) -> str:
    """A defence without its settings: `gaussian:sigma=0.1+cem:weight=8` is `gaussian+cem`."""
    return re.sub(r":[^+]*", "", defense)


def _families(most: Mapping[str, BySeed], accuracies: Mapping[str, BySeed], sign: float) -> list[Family]:
    """Leak of every family where it costs as much accuracy as the others.

    A family is a curve from its undefended twin through its settings. Where it costs more, or less, than
    a level asks for at any seed, it has no value there.
    """
    twin = next((name for name in most if name == "none"), None)
    if twin is None:
        return []
    members: dict[str, list[str]] = defaultdict(list)
    for name in most:
        if name != twin and accuracies[name]:
            members[family(name)].append(name)
    curves: dict[float, dict[str, BySeed]] = {level: {} for level in LEVELS}
    for name, own in members.items():
        for level in LEVELS:
            values = {}
            for seed, top in accuracies[twin].items():
                known = [m for m in (twin, *own) if seed in most[m] and seed in accuracies[m]]
                value = at_accuracy([(accuracies[m][seed], most[m][seed]) for m in known], top - level)
                if value is not None:
                    values[seed] = value
            if values and values.keys() == accuracies[twin].keys():
                curves[level][name] = values
    best = {level: surely_least(found) for level, found in curves.items()}
    listed = []
    for name, own in sorted(members.items()):
        matched: dict[float, tuple[Estimate, bool] | None] = {}
        for level in LEVELS:
            by_seed = curves[level].get(name)
            values_ = None if by_seed is None else [sign * value for value in by_seed.values()]
            matched[level] = None if values_ is None else (estimate(values_), best[level] == name)
        listed.append(Family(name, len(own), matched))
    return listed


def command(result: Result, *, seed: bool = True) -> str | None:
    """What repeats a result."""
    if result.command is None:
        return None
    if result.outside:
        return result.command
    chosen = ["--cut", result.cut, "--defense", result.defense, "--attack", result.attack]
    tail = ["--seed", str(result.seed)] if seed else []
    return f"{result.command} {shlex.join([*chosen, *tail])}"
