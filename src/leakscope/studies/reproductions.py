"""Published tables by name: which configuration repeats one, and where its figures and ours are found.

The list is `published/reproductions.json`. A path such as `faces/II/*/psnr/0` leads through a JSON tree;
what its `*` stood for in the published figures stands in ours too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from leakscope.core.errors import UsageError, unknown
from leakscope.studies.study import Figures, published


@dataclass(frozen=True)
class Reproduction:
    """One published table."""

    name: str
    what: str
    source: str
    config: str
    scales: dict[str, str | None]  # of the command → of the configuration; None: the file's own values
    published: str | None
    figures: list[dict[str, Any]]
    claims: str  # only claims that begin so

    @property
    def path(self) -> Path:
        """The configuration, from where the package keeps them."""
        path = Path(str(files("leakscope").joinpath("configs", self.config)))
        if not path.is_file():
            raise UsageError(f"{self.name} needs configs/{self.config}, which this version does not have yet")
        return path

    def scale(self, wanted: str) -> str | None:
        if wanted not in self.scales:
            raise UsageError(f"{self.name} has no scale {wanted!r} yet; it has: {', '.join(self.scales)}")
        return self.scales[wanted]


def reproductions() -> dict[str, Reproduction]:
    """All that are listed."""
    text = files("leakscope.studies").joinpath("published", "reproductions.json").read_text(encoding="utf-8")
    return {name: Reproduction(name=name, **entry) for name, entry in json.loads(text).items()}


def reproduction(name: str) -> Reproduction:
    listed = reproductions()
    if name not in listed:
        raise unknown("reproduction", name, listed)
    return listed[name]


@dataclass(frozen=True)
class Compared:
    """A published figure beside ours; None where there is none."""

    what: str
    published: float | None
    obtained: float | None
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, Any]:
        return vars(self)


def compared(entry: Reproduction, ours: Figures) -> list[Compared]:
    """Published figures beside those of the study's JSON."""
    theirs = published(entry.published) if entry.published else {}
    rows = []
    for figure in entry.figures:
        times = figure.get("times", 1.0)
        names: Mapping[str, str] = figure.get("names", {})  # what a published name is called here
        for captured, value in _walk(theirs, figure["published"].split("/")):
            steps = iter([names.get(word, word) for word in captured])
            path = [next(steps) if part == "*" else part for part in figure["obtained"].split("/")]
            found = _follow(ours, path)
            mean, low, high = _interval(found)
            scaled = (None if number is None else times * number for number in (mean, low, high))
            rows.append(Compared(figure["what"].format(*captured), float(value), *scaled))
    return rows


def _interval(found: Any) -> tuple[float | None, float | None, float | None]:
    if isinstance(found, Mapping):
        return found.get("mean"), found.get("low"), found.get("high")
    return (float(found), None, None) if isinstance(found, int | float) else (None, None, None)


def _keyed(tree: Any) -> Mapping[str, Any]:
    """Children by name; of a list by position, or by the defence an entry is about."""
    if isinstance(tree, Mapping):
        return tree
    if isinstance(tree, list):
        keyed: dict[str, Any] = {}
        for place, item in enumerate(tree):
            keyed.setdefault(
                str(item["defense"]) if isinstance(item, Mapping) and "defense" in item else str(place), item
            )
        return keyed
    return {}


def _walk(tree: Any, path: list[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every number a path with stars leads to, and what the stars stood for."""
    if not path:
        if isinstance(tree, int | float):
            yield (), tree
        return
    step, rest = path[0], path[1:]
    children = _keyed(tree)
    for name in children if step == "*" else [step]:
        if name in children:
            for captured, value in _walk(children[name], rest):
                yield ((name, *captured) if step == "*" else captured), value


def _follow(tree: Any, path: list[str]) -> Any:
    for step in path:
        tree = _keyed(tree).get(step)
    return tree
