"""Results of a store as rows: what was attacked, by whom, and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from leakscope.core.errors import UsageError
from leakscope.core.spec import digest
from leakscope.store import Store

#: What a filter may name; each is matched against how the thing is written, with * and ?.
NAMES = ("data", "model", "cut", "defense", "threat", "attack", "seed")
#: Parts of a target's plan that its row names already; the rest makes the setting.
_NAMED = ("model", "cut", "defense", "seed")


@dataclass(frozen=True, slots=True)
class Result:
    """One attack on one target, under one metric."""

    key: str
    data: str
    model: str
    cut: str
    defense: str
    threat: str
    attack: str
    seed: int
    setting: str  # digest of pictures and training: targets of one setting can be compared
    victims: str  # digest of the attacked pictures: results on the same can be paired
    accuracy: float | None
    mean: float
    low: float
    high: float
    worst: float
    count: int  # victims
    command: str | None  # what repeats it, but for cut, defence, attack and seed; None when nothing does
    outside: bool  # somebody else's attack

    def named(self, name: str) -> str:
        return str(getattr(self, name))


@dataclass(frozen=True)
class Results:
    """All that match, and which end of the metric means more leakage."""

    metric: str
    more_leak: Literal["high", "low"]
    rows: list[Result]


def parse_filters(texts: Iterable[str]) -> list[tuple[str, str]]:
    """`data=mnist5k`, `defense=gaussian*`."""
    filters = []
    for text in texts:
        name, equals, pattern = text.partition("=")
        if not equals or name not in NAMES:
            raise UsageError(f"--filter {text}: write NAME=PATTERN with one of: {', '.join(NAMES)}")
        filters.append((name, pattern))
    return filters


def read_results(store: Store, metric: str = "leak", filters: Iterable[tuple[str, str]] = ()) -> Results:
    """Scores of every attack on a real target; what an attack did to a control is no result."""
    chosen: dict[str, set[str]] = {}
    for name, pattern in filters:  # patterns of one name are alternatives
        chosen.setdefault(name, set()).add(pattern)
    summaries = store.summaries("result")
    known = {name for summary in summaries.values() for name in summary.get("metrics", ())}
    if summaries and metric not in known:
        raise UsageError(f"no result of {store.root} has the metric {metric!r}; there are: {', '.join(sorted(known))}")
    targets: dict[str, Mapping[str, Any] | None] = {}
    rows, signs = [], 0
    for key, summary in summaries.items():
        scores = summary.get("metrics", {}).get(metric)
        if scores is None:
            continue
        facts = summary if "setting" in summary else _facts(store, summary, targets)
        if facts is None:
            continue
        signs += (scores["worst"] > scores["mean"]) - (scores["worst"] < scores["mean"])
        row = _row(key, summary, facts, scores)
        if all(any(fnmatchcase(row.named(name), p) for p in patterns) for name, patterns in chosen.items()):
            rows.append(row)
    # The worst picture lies on the leaking side of the mean, whatever the metric.
    return Results(metric, "high" if signs >= 0 else "low", rows)


def _row(key: str, summary: Mapping[str, Any], facts: Mapping[str, Any], scores: Mapping[str, Any]) -> Result:
    return Result(
        key=key, data=facts["data"], model=facts["model"], cut=facts["cut"], defense=facts["defense"],
        threat=facts["threat"], attack=summary["attack"], seed=int(summary["seed"]), setting=facts["setting"],
        victims=facts["victims"], accuracy=facts["accuracy"], mean=scores["mean"], low=scores["low"],
        high=scores["high"], worst=scores["worst"], count=scores["n"], command=facts.get("command"),
        outside="outside" in summary,
    )  # fmt: skip


def _facts(store: Store, summary: Mapping[str, Any], kept: dict[str, Any]) -> Mapping[str, Any] | None:
    """What results of older versions do not say themselves, from their target; None for a control."""
    key = summary.get("target", "")
    if key not in kept:
        entry = store.get("target", key) if key else None
        kept[key] = None if entry is None else _of_target(entry.record)
    facts: Mapping[str, Any] | None = kept[key]
    return facts


def _of_target(record: Mapping[str, Any]) -> dict[str, Any]:
    plan = record["plan"]
    return {
        **{name: record[name] for name in ("model", "cut", "defense", "accuracy")},
        "data": f"pictures {plan['splits'][:8]}",
        "threat": "not recorded",
        "setting": setting_of(plan),
        "victims": "",
    }


def setting_of(plan: Mapping[str, Any]) -> str:
    """What two targets must share to be compared: pictures, given weights and training."""
    return digest({name: value for name, value in plan.items() if name not in _NAMED})[:8]
