"""Published tables by name: which configuration repeats one, and whether every table and figure is covered.

The list is `published/reproductions.json`; published figures are in the files of their papers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path

from leakscope.core.defense import build_defense
from leakscope.core.errors import UsageError, unknown
from leakscope.core.results import Method, from_json
from leakscope.core.spec import parse
from leakscope.experiments.config import AuditConfig, read_yaml
from leakscope.studies.picks import Pick
from leakscope.studies.published import paper
from leakscope.studies.records import Beside, Part

_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")


@dataclass(frozen=True)
class Reproduction:
    """Published tables that one configuration repeats."""

    what: str
    paper: str
    tables: tuple[str, ...]
    scales: Mapping[str, tuple[str, str | None]]  # configuration and its scale; None: the file's own values

    @property
    def source(self) -> str:
        return paper(self.paper).source

    @property
    def usual_scale(self) -> str:
        """What our pages show, where that has a size of its own."""
        return "trial" if "trial" in self.scales else "small"

    def protocol(self, name: str, wanted: str) -> tuple[Path, str | None]:
        """The configuration that repeats it, from where the package keeps them, and the scale to ask of that."""
        if wanted not in self.scales:
            raise UsageError(f"{name} has no scale {wanted!r}; it has: {', '.join(self.scales)}")
        config, scale = self.scales[wanted]
        return configs() / config, scale

    def rows(self, part: Part) -> list[Beside]:
        """Its published figures beside ours."""
        return [row for row in part.published if row.table in self.tables]


@dataclass(frozen=True)
class Coverage:
    """Which tables and figures of a paper are looked at outside our tables, and which are not, and why."""

    count: Mapping[str, int | str]  # how many tables and figures; a Roman numeral where they are counted so
    elsewhere: Mapping[str, str]
    reasons: Mapping[str, str]

    @property
    def numbers(self) -> list[str]:
        """Every table and figure of the paper."""
        found = []
        for kind, last in self.count.items():
            named = _ROMAN[: _ROMAN.index(last) + 1] if isinstance(last, str) else range(1, last + 1)
            found += [f"{kind} {number}" for number in named]
        return found


@dataclass(frozen=True)
class Listed:
    """The file of reproductions."""

    reproductions: Mapping[str, Reproduction]
    coverage: Mapping[str, Coverage]


def configs() -> Path:
    """Where the package keeps configurations."""
    return Path(str(files("leakscope").joinpath("configs")))


@cache
def listed() -> Listed:
    text = files("leakscope.studies").joinpath("published", "reproductions.json").read_text(encoding="utf-8")
    return from_json(Listed, json.loads(text), "published/reproductions.json")


def reproduction(name: str) -> Reproduction:
    """One by name."""
    known = listed().reproductions
    if name not in known:
        raise unknown("reproduction", name, known)
    return known[name]


@dataclass(frozen=True)
class Covered:
    """One table or figure: where it is looked at, or why it is not."""

    number: str
    covered: bool
    told: str


def coverage(name: str) -> Iterator[Covered]:
    """Every table and figure of a paper."""
    own = listed().coverage[name]
    names: dict[str, list[str]] = {}
    for each, entry in listed().reproductions.items():
        for table in entry.tables if entry.paper == name else ():
            names.setdefault(table, []).append(each)
    for number in own.numbers:
        if number in own.reasons:
            yield Covered(number, False, own.reasons[number])
        elif number in own.elsewhere:
            yield Covered(number, True, own.elsewhere[number])
        else:
            runners = sorted(configured(name, number))
            run = f"by {', '.join(runners)}" if runners else "no configuration runs its rows yet"
            yield Covered(number, bool(runners), f"{', '.join(names.get(number, ['not listed']))} ({run})")


@cache
def _planned(study: str) -> tuple[tuple[str, str, str, tuple[Method, ...], tuple[str, ...]], ...]:
    """What the configurations of a study plan: file, data, variant, defences and kinds of attacks."""
    found = []
    for path in sorted(configs().glob("*.yaml")):
        tree = read_yaml(path)
        given = tree.get("study")
        if given is None or (given if isinstance(given, str) else given["kind"]) != study:
            continue
        for scale in (None, *tree.get("scales", {})):
            for variant, config in AuditConfig.read_all(path, {}, scale).items():
                data = config.data if isinstance(config.data, dict) else parse(config.data)
                named = Path(str(data["path"])).stem if "path" in data else str(data["kind"])
                defenses = tuple(Method.of(build_defense(spec)) for spec in config.defenses)
                attacks = config.attacks if isinstance(config.attacks, list) else []
                kinds = tuple(str((a if isinstance(a, dict) else parse(a))["kind"]) for a in attacks)
                found.append((path.name, named, variant, defenses, kinds))
    return tuple(found)


def configured(name: str, number: str) -> set[str]:
    """The configurations that run at least one row of a published table."""
    found = set()
    for table in paper(name).tables:
        if table.id == number:
            picks = [row.pick for row in table.rows if row.pick is not None]
            for file, data, variant, defenses, attacks in _planned(paper(name).study):
                if data in table.data and any(_runs(pick, variant, defenses, attacks) for pick in picks):
                    found.add(file)
    return found


def _runs(pick: Pick, variant: str, defenses: tuple[Method, ...], attacks: tuple[str, ...]) -> bool:
    named = any(fnmatchcase(variant, one) for one in pick.variant.split("|"))
    met = not pick.attacks or not attacks or bool(set(pick.attacks) & set(attacks))
    return named and met and any(pick.fits_defense(defense) for defense in defenses)
