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
from statistics import fmean
from typing import Any

from leakscope.core.errors import UsageError, unknown
from leakscope.studies.study import Figures, published


@dataclass(frozen=True)
class Reproduction:
    """One published table."""

    name: str
    what: str
    source: str
    scales: dict[str, tuple[str, str | None]]  # configuration and its scale; None: the file's own values
    published: str | None
    figures: list[dict[str, Any]]
    claims: str  # only claims that begin so

    def protocol(self, wanted: str) -> tuple[Path, str | None]:
        """The configuration that repeats it, from where the package keeps them, and the scale to ask of that."""
        if wanted not in self.scales:
            raise UsageError(f"{self.name} has no scale {wanted!r}; it has: {', '.join(self.scales)}")
        config, scale = self.scales[wanted]
        return Path(str(files("leakscope").joinpath("configs", config))), scale


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
        # What a published name is called here; of several, the one that was run.
        names: Mapping[str, str | list[str]] = figure.get("names", {})
        for captured, value in _walk(theirs, figure["published"].split("/")):
            steps = iter(captured)
            wanted = [next(steps) if part == "*" else part for part in figure["obtained"].split("/")]
            path = [names.get(word, word) for word in wanted]
            found = _follow(ours, path)
            mean, low, high = _interval(found)
            scaled = (None if number is None else times * number for number in (mean, low, high))
            rows.append(Compared(figure["what"].format(*captured), float(value), *scaled))
    return rows


def _interval(found: Any) -> tuple[float | None, float | None, float | None]:
    if isinstance(found, list):  # one number a training
        return fmean(found), None, None
    if isinstance(found, Mapping):
        return found.get("mean"), found.get("low"), found.get("high")
    return (float(found), None, None) if isinstance(found, int | float) else (None, None, None)


def _keyed(tree: Any) -> Mapping[str, Any]:
    """Children by name; of a list by the defence an entry is about, its name, or its place."""
    if isinstance(tree, Mapping):
        return tree
    if isinstance(tree, list):
        keyed: dict[str, Any] = {}
        for place, item in enumerate(tree):
            own = item if isinstance(item, Mapping) else {}
            keyed.setdefault(str(own.get("defense", own.get("name", place))), item)
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


def _follow(tree: Any, path: list[str | list[str]]) -> Any:
    for step in path:
        children = _keyed(tree)
        tree = next((children[name] for name in ([step] if isinstance(step, str) else step) if name in children), None)
    return tree
