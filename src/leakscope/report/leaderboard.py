"""The leaderboard: for each setting a table of rivals, with what every attack rebuilt from them."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import fmean
from typing import Literal

from leakscope.core.words import FLAGS, FlagId
from leakscope.report.comparable import common_attacks, comparable_seeds, same_victims
from leakscope.report.estimates import MIN_SEEDS, BySeed, Estimate, estimate, front, surely_least
from leakscope.report.families import Family, Standing, families
from leakscope.report.numbers import number
from leakscope.report.results import Entry, Results
from leakscope.report.targets import short_names

Group = Literal["defense", "model", "cut"]
#: What makes two results comparable, beside what the rows show.
_PLACE = ("data", "model", "cut", "defense", "threat")
#: Stands behind the name of a row that is in doubt, and behind a doubtful figure.
DOUBT = "†"

#: By row, then by attack, then by seed.
Table = Mapping[Hashable, Mapping[Hashable, Mapping[int, Entry]]]


@dataclass(frozen=True)
class Cell:
    """One number of a table, and the results behind it, one per seed."""

    number: int  # its address on the page
    value: Estimate
    worst: float
    entries: tuple[Entry, ...]
    best: bool = False  # surely below every rival that is not in doubt

    @property
    def doubtful(self) -> bool:
        return any(entry.result.doubtful for entry in self.entries)

    @property
    def sound(self) -> bool:
        """A figure that may be called the best."""
        return not self.doubtful and math.isfinite(self.value.mean)


@dataclass(frozen=True)
class Doubt:
    """Why a row is not believed: one cause, and the seeds and attacks it was found at."""

    id: FlagId
    where: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.id} ({', '.join(self.where)}): {FLAGS[self.id].explanation}"


@dataclass(frozen=True)
class Row:
    """One rival."""

    name: str
    accuracy: Estimate | None
    strongest: Cell  # of the attacks that are compared, the one that rebuilt most, chosen for each seed
    attacks: dict[str, Cell]
    doubts: tuple[Doubt, ...]
    note: str  # how its attacks differ from those that are compared; empty: they do not
    ranked: bool  # False: in doubt, or without an attack in common with the others
    on_front: bool = False
    rank: int | None = None

    @property
    def doubtful(self) -> bool:
        return bool(self.doubts)


@dataclass(frozen=True)
class Section:
    """Rivals that can be compared: same pictures, same victims, same threat model."""

    place: dict[str, str]  # as it is written, without what the table groups by
    setting: str
    victims: int
    attacks: list[str]
    compared: list[str]  # what every ranked row was attacked by; the strongest of these is what ranks
    rows: list[Row]
    families: list[Family]

    @property
    def threat(self) -> str:
        return self.place["threat"]

    @property
    def title(self) -> str:
        place = self.place
        network = " at ".join(place[name] for name in ("model", "cut") if name in place)
        defense = f"defence {place['defense']}" if "defense" in place else ""
        return ", ".join(part for part in (place["data"], network, defense) if part)

    @property
    def like_with_like(self) -> str:
        """What is compared, where rows were not all attacked by the same."""
        if all(not row.note for row in self.rows):
            return ""
        return f"Rows were not all attacked by the same attacks: compared on {', '.join(self.compared)} only."

    @property
    def few_seeds(self) -> bool:
        """No row has enough seeds for an interval."""
        return all(row.strongest.value.seeds < MIN_SEEDS for row in self.rows)


def sections(found: Results, group: Group = "defense") -> list[Section]:
    """The tables of all settings, the largest first."""
    place = tuple(name for name in _PLACE if name != group)
    settings: dict[tuple[Hashable, ...], list[Entry]] = defaultdict(list)
    for entry in found.entries:
        key = (entry.target.setting, entry.result.goal)
        settings[(*(entry.identity(name) for name in place), *key)].append(entry)
    numbers = count(1)
    made = [
        _Maker(found, group, numbers).section({name: own[0].written(name) for name in place}, own)
        for alike in settings.values()
        for own in same_victims(alike)
    ]
    return sorted(made, key=lambda section: (-len(section.rows), section.title, section.threat))


@dataclass(frozen=True)
class _Maker:
    """Makes the table of one setting."""

    found: Results
    group: Group
    numbers: count[int]

    @property
    def sign(self) -> float:
        """+1 or −1, so that lower is better for what is compared."""
        return 1.0 if self.found.more_leak == "high" else -1.0

    def leak(self, entry: Entry) -> float:
        """Signed; an attack without a figure rebuilt nothing."""
        mean = self.found.score(entry).mean
        return self.sign * mean if math.isfinite(mean) else -math.inf

    def section(self, place: dict[str, str], own: Sequence[Entry]) -> Section:
        table: dict[Hashable, dict[Hashable, dict[int, Entry]]] = defaultdict(lambda: defaultdict(dict))
        for entry in own:  # the same reconstructions under another list of metrics score the same
            by_seed = table[entry.identity(self.group)][entry.identity("attack")]
            by_seed.setdefault(entry.result.seed, entry)
        titles = short_names(entry.result for entry in own)
        attacks = _distinct({e.identity("attack"): titles[e.result.attack.label] for e in own})
        names = _distinct({e.identity(self.group): e.written(self.group) for e in own})
        common = common_attacks({row: set(cells) for row, cells in table.items()})
        rows = {row: self._row(names[row], table[row], common, attacks) for row in table}
        rows = self._judged(rows, table, attacks)
        listed = sorted(rows.values(), key=self._order)
        ranks = count(1)
        listed = [replace(row, rank=next(ranks) if row.ranked else None) for row in listed]
        return Section(
            place=place,
            setting=own[0].target.setting,
            victims=self.found.score(own[0]).n,
            attacks=sorted(attacks.values()),
            compared=sorted(attacks[attack] for attack in common),
            rows=listed,
            families=families(self._standings(rows), self.sign) if self.group == "defense" else [],
        )

    def _order(self, row: Row) -> tuple[bool, float, str]:
        """Ranked rows first, the least leaking first."""
        mean = self.sign * row.strongest.value.mean
        return not row.ranked, mean if math.isfinite(mean) else math.inf, row.name

    def _row(
        self,
        name: str,
        own: Mapping[Hashable, Mapping[int, Entry]],
        common: frozenset[Hashable],
        titles: Mapping[Hashable, str],
    ) -> Row:
        seeds = comparable_seeds(own, common)
        shared = common if seeds else frozenset(own)
        strongest = self._strongest({attack: own[attack] for attack in shared}, seeds or None)
        doubts = _doubts(strongest.values(), titles)
        return Row(
            name=name,
            accuracy=_accuracy(strongest.values()),
            strongest=self._cell(strongest),
            attacks={titles[attack]: self._cell(by_seed) for attack, by_seed in own.items()},
            doubts=doubts,
            note=self._note(own, common, titles, bool(seeds)),
            ranked=bool(seeds) and not doubts and all(math.isfinite(self.leak(e)) for e in strongest.values()),
        )

    def _strongest(
        self, own: Mapping[Hashable, Mapping[int, Entry]], seeds: frozenset[int] | None = None
    ) -> dict[int, Entry]:
        """For each seed the attack that rebuilt most."""
        chosen: dict[int, Entry] = {}
        for by_seed in own.values():
            for seed, entry in by_seed.items():
                better = seed not in chosen or self.leak(entry) > self.leak(chosen[seed])
                if better and (seeds is None or seed in seeds):
                    chosen[seed] = entry
        return chosen

    def _note(
        self,
        own: Mapping[Hashable, Mapping[int, Entry]],
        common: frozenset[Hashable],
        titles: Mapping[Hashable, str],
        comparable: bool,
    ) -> str:
        if not comparable:
            missing = ", ".join(sorted(titles[attack] for attack in common - own.keys())) or "all seeds of the others"
            return f"not ranked: not attacked by {missing}"
        if own.keys() == common:
            return ""
        told = []
        for attack in own.keys() - common:
            value = fmean(self.found.score(entry).mean for entry in own[attack].values())
            told.append(f"{titles[attack]} ({number(value)})")
        return f"also attacked by {', '.join(sorted(told))}, which other rows were not: not compared"

    def _cell(self, by_seed: Mapping[int, Entry]) -> Cell:
        entries = tuple(entry for _, entry in sorted(by_seed.items()))
        scores = [self.found.score(entry) for entry in entries]
        worst = max if self.sign > 0 else min
        value = estimate([score.mean for score in scores])
        return Cell(next(self.numbers), value, worst(score.worst for score in scores), entries)

    def _judged(
        self, rows: Mapping[Hashable, Row], table: Table, titles: Mapping[Hashable, str]
    ) -> dict[Hashable, Row]:
        """The same rows with what is best among those that are not in doubt, and with the front."""
        sound = {name: row for name, row in rows.items() if row.ranked}
        best = surely_least({name: self._by_seed(row.strongest) for name, row in sound.items()})
        points = {
            name: (row.accuracy.mean, self.sign * row.strongest.value.mean)
            for name, row in sound.items()
            if row.accuracy is not None
        }
        on_front = front(points)
        winners = {
            titles[attack]: surely_least(
                {
                    name: self._by_seed(row.attacks[titles[attack]])
                    for name, row in sound.items()
                    if attack in table[name] and row.attacks[titles[attack]].sound
                }
            )
            for attack in titles
        }
        return {
            name: replace(
                row,
                strongest=replace(row.strongest, best=name == best),
                attacks={a: replace(cell, best=name == winners[a]) for a, cell in row.attacks.items()},
                on_front=name in on_front,
            )
            for name, row in rows.items()
        }

    def _by_seed(self, cell: Cell) -> dict[int, float]:
        return {entry.result.seed: self.leak(entry) for entry in cell.entries}

    def _standings(self, rows: Mapping[Hashable, Row]) -> list[Standing]:
        return [
            Standing(
                kinds=row.strongest.entries[0].target.defense.kinds,
                undefended=row.strongest.entries[0].target.undefended,
                leak=self._by_seed(row.strongest),
                accuracy=_accuracies(row.strongest.entries),
                doubtful=row.doubtful,
            )
            for row in rows.values()
            if row.ranked or row.doubtful
        ]


def _distinct(names: Mapping[Hashable, str]) -> dict[Hashable, str]:
    """Names for things; two things of one name are told apart by a number."""
    seen: dict[str, int] = defaultdict(int)
    told: dict[Hashable, str] = {}
    for identity, name in names.items():
        seen[name] += 1
        told[identity] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return told


def _doubts(entries: Iterable[Entry], titles: Mapping[Hashable, str]) -> tuple[Doubt, ...]:
    places: dict[FlagId, dict[str, None]] = {}
    for entry in entries:
        for flag in entry.result.flags:
            if flag.blocks:
                where = f"{titles[entry.identity('attack')]}, seed {entry.result.seed}"
                places.setdefault(flag.id, {})[where] = None
    return tuple(Doubt(name, tuple(where)) for name, where in places.items())


def _accuracies(entries: Iterable[Entry]) -> BySeed:
    known = ((entry.result.seed, entry.target.accuracy) for entry in entries)
    return {seed: accuracy for seed, accuracy in known if accuracy is not None}


def _accuracy(entries: Iterable[Entry]) -> Estimate | None:
    known = list(_accuracies(entries).values())
    return estimate(known) if known else None


def command(entry: Entry, *, seed: bool = True) -> str | None:
    """What repeats a result; None when nothing does."""
    result = entry.result
    if result.command is None or result.traits.outside:
        return result.command
    chosen = ["--cut", entry.target.cut, "--defense", entry.target.defense.label, "--attack", result.attack.label]
    tail = ["--seed", str(result.seed)] if seed else []
    return f"{result.command} {shlex.join([*chosen, *tail])}"
