"""The targets of an audit in the order and with the names that every rendering uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """One target, its number on the page, and its attacks with the strongest first."""

    number: int
    facts: Mapping[str, Any]
    results: tuple[Mapping[str, Any], ...]
    seed_matters: bool  # several seeds were audited, so a name must say which

    @property
    def title(self) -> str:
        defense = str(self.facts["defense"])
        return "No defence" if defense == "none" else defense

    @property
    def place(self) -> str:
        seed = f", seed {self.facts['seed']}" if self.seed_matters else ""
        return f"{self.facts['model']} at {self.facts['cut']}{seed}"

    @property
    def name(self) -> str:
        return f"{self.title}, {self.place}"

    @property
    def strongest(self) -> Mapping[str, Any] | None:
        first = self.results[0] if self.results else None
        return first if first is not None and first["attack"] == self.facts.get("strongest") else None

    @property
    def leak(self) -> Summary | None:
        """What the strongest attack recovered."""
        return None if self.strongest is None else self.strongest["metrics"].get("leak")

    @property
    def worst_case(self) -> Summary | None:
        """The best guess of any attack, picture by picture."""
        return (self.facts.get("worst_case") or {}).get("leak")


def targets_of(audit: Mapping[str, Any]) -> list[Target]:
    seeds = {target["seed"] for target in audit["targets"]}
    listed = []
    for place, facts in enumerate(audit["targets"], start=1):
        own = [result for result in audit["results"] if result["target"] == facts["key"]]
        strongest = facts.get("strongest")
        own.sort(key=lambda result: (result["attack"] != strongest, -_leak(result)))
        listed.append(Target(place, facts, tuple(own), len(seeds) > 1))
    return listed


def is_known(value: float | None) -> bool:
    """There is a number, and it can be drawn."""
    return value is not None and math.isfinite(value)


def _leak(result: Mapping[str, Any]) -> float:
    mean = result["metrics"].get("leak", {}).get("mean")
    return float(mean) if is_known(mean) else -math.inf


def highest_floor(audit: Mapping[str, Any]) -> tuple[str, float] | None:
    """The best that can be had without observing anything, in `leak`, and whose it is."""
    known = [
        (name, float(scores["leak"]["mean"]))
        for name, scores in audit["floors"].items()
        if is_known(scores.get("leak", {}).get("mean"))
    ]
    return max(known, key=lambda pair: pair[1], default=None)
