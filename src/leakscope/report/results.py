"""Results as a leaderboard takes them: each attack beside its target, chosen by metric and filters."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from leakscope.core.errors import UsageError
from leakscope.core.results import Direction, Finding, Method, Summary
from leakscope.report.targets import network_name

#: What a filter may name; each is matched against how the thing is written, with * and ?.
NAMES = ("data", "model", "cut", "defense", "threat", "attack", "seed")


@dataclass(frozen=True)
class Entry(Finding):
    """A finding as tables show, compare and filter it."""

    def method(self, name: str) -> Method | None:
        """The method that a name stands for, where it is one."""
        return {"model": self.target.model, "defense": self.target.defense, "attack": self.result.attack}.get(name)

    def written(self, name: str) -> str:
        """For people."""
        if name == "model":
            return network_name(self.target.model)
        method = self.method(name)
        if method is not None:
            return method.label
        texts = {
            "data": self.target.data,
            "cut": self.target.cut,
            "threat": self.result.threat.label,
            "seed": str(self.result.seed),
        }
        return texts[name]

    def identity(self, name: str) -> Hashable:
        """For comparing: what a thing is, whatever it is called."""
        method = self.method(name)
        if method is not None:
            return json.dumps(method.settings, sort_keys=True)
        return self.result.threat if name == "threat" else self.written(name)

    def spellings(self, name: str) -> set[str]:
        """What a filter may match: how the thing is shown, and how it is written in full."""
        method = self.method(name)
        return {self.written(name)} if method is None else {self.written(name), method.label, method.kind}


@dataclass(frozen=True)
class Results:
    """All that match, and which end of the metric means more leakage."""

    metric: str
    more_leak: Direction
    entries: tuple[Entry, ...]

    def score(self, entry: Entry) -> Summary:
        return entry.result.metrics[self.metric]


def parse_filters(texts: Iterable[str]) -> list[tuple[str, str]]:
    """`data=mnist5k`, `defense=gaussian*`."""
    filters = []
    for text in texts:
        name, equals, pattern = text.partition("=")
        if not equals or name not in NAMES:
            raise UsageError(f"--filter {text}: write NAME=PATTERN with one of: {', '.join(NAMES)}")
        filters.append((name, pattern))
    return filters


def choose(entries: Sequence[Entry], metric: str = "leak", filters: Iterable[tuple[str, str]] = ()) -> Results:
    """Those that have the metric and match every filter; patterns of one name are alternatives."""
    wanted: dict[str, set[str]] = {}
    for name, pattern in filters:
        wanted.setdefault(name, set()).add(pattern)
    scored = [entry for entry in entries if metric in entry.result.metrics]
    if entries and not scored:
        known = sorted({name for entry in entries for name in entry.result.metrics})
        raise UsageError(f"no result has the metric {metric!r}; there are: {', '.join(known)}")
    directions = {entry.result.directions[metric] for entry in scored}
    if len(directions) > 1:
        raise UsageError(f"results disagree on which end of {metric!r} leaks more; make the older ones again")
    chosen = tuple(
        entry
        for entry in scored
        if all(
            any(fnmatchcase(text, pattern) for text in entry.spellings(name) for pattern in patterns)
            for name, patterns in wanted.items()
        )
    )
    return Results(metric, next(iter(directions), "high"), chosen)
