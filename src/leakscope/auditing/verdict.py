"""Gate, evidence level and verdict, computed once, before anything is rendered."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from leakscope.core.errors import UsageError

Status = Literal["pass", "fail", "inconclusive", "measured"]
EXIT_CODES: dict[Status, int] = {"pass": 0, "measured": 0, "fail": 1, "inconclusive": 4}
LEVELS = ("E0", "E1", "E2", "E3")

_GATE = re.compile(r"^\s*([\w\[\]-]+)\s*(<=|>=|<|>)\s*(-?[\d.]+(?:e-?\d+)?)\s*(?:at\s+(E[0-3]))?\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Gate:
    """`leak<=0.2 at E1`: what a target may give away at most, and how well that must be shown."""

    text: str
    metric: str
    below: bool
    limit: float
    level: str | None

    @classmethod
    def parse(cls, text: str, metrics: dict[str, str]) -> Gate:
        """`metrics` gives for each known metric the end of the scale that means more leakage."""
        match = _GATE.match(text)
        if match is None:
            raise UsageError(f"cannot read the gate {text!r}; write it like 'leak<=0.2' or 'ssim<=0.5 at E1'")
        metric, operator, limit, level = match.groups()
        if metric not in metrics:
            raise UsageError(f"the gate {text!r} names {metric!r}; computed metrics are: {', '.join(sorted(metrics))}")
        below = operator.startswith("<")
        if below != (metrics[metric] == "high"):
            right = "<=" if metrics[metric] == "high" else ">="
            raise UsageError(f"the gate {text!r} would reward leakage; write {metric}{right}{limit}")
        return cls(text.strip(), metric, below, float(limit), level.upper() if level else None)

    def value(self, summary: dict[str, float]) -> float:
        """The pessimistic end of the interval: a pass must not hang on luck."""
        return summary["high"] if self.below else summary["low"]

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.below else value >= self.limit


@dataclass(frozen=True)
class Evidence:
    """How well a statement is shown."""

    level: str
    met: list[str]
    missing: list[str]


def evidence(conditions: dict[str, list[tuple[str, bool]]]) -> Evidence:
    """The highest level all of whose conditions, and those of the levels below it, hold."""
    met = [text for level in LEVELS for text, held in conditions.get(level, []) if held]
    missing = [f"{level}: {text}" for level in LEVELS for text, held in conditions.get(level, []) if not held]
    reached = "E0"
    for level in LEVELS[1:]:
        if level not in conditions or not all(held for _, held in conditions[level]):
            break
        reached = level
    return Evidence(reached, met, missing)


@dataclass(frozen=True)
class Verdict:
    """What the audit says."""

    status: Status
    sentence: str
    reasons: list[str]
    gate: dict[str, Any] | None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]


CONTROLS_FAILED = {"control-failed", "class-control-failed", "negative-control"}

#: What was found, by whether classes were rebuilt: share, target, and the target's undefended twin.
FOUND = {
    False: "An attacker rebuilt {} of what distinguishes a picture from the average of its class, "
    "from what {} gives away{}",
    True: "Of the identities rebuilt from {1}, a network that no attack has read recognised {0} as well as real "
    "pictures{2}",
}


def judge(
    targets: list[dict[str, Any]],
    flags: list[dict[str, str]],
    reached: Evidence,
    gate: Gate | None,
    *,
    of_classes: bool = False,
) -> Verdict:
    """One verdict. A found leak fails whatever the flags; a clean pass needs all of them quiet.

    Targets with a defence are judged; undefended ones beside them are there to compare with.
    """
    judged = [target for target in targets if target["defense"] != "none"] or targets
    blocking = sorted({f"{flag['id']} ({flag['where']})" for flag in flags if flag["severity"] == "blocks"})
    worst = max(judged, key=lambda target: target["worst_case"]["leak"]["mean"])
    share = worst["worst_case"]["leak"]["mean"]
    found = FOUND[of_classes].format(f"{max(share, 0):.0%}", _name(worst), _twin(worst, targets))
    if gate is None:
        if any(flag["id"] in CONTROLS_FAILED for flag in flags):
            return Verdict("inconclusive", f"No statement is possible: {_controls(flags)}", blocking, None)
        return Verdict("measured", f"{found}; no limit was set.", blocking, None)

    values = [(gate.value(target["worst_case"][gate.metric]), target) for target in judged]
    value, where = (max if gate.below else min)(values, key=lambda pair: pair[0])
    record = {
        "text": gate.text, "metric": gate.metric, "limit": gate.limit, "level": gate.level,
        "value": value, "held": gate.holds(value), "where": _name(where),
    }  # fmt: skip
    if not record["held"]:
        return Verdict("fail", f"{found}: more than the limit {gate.text} allows ({value:.3g}).", blocking, record)
    if blocking:
        return Verdict(
            "inconclusive",
            f"The limit {gate.text} was not exceeded, but the attacks cannot be relied on.",
            blocking,
            record,
        )
    if gate.level is not None and LEVELS.index(reached.level) < LEVELS.index(gate.level):
        return Verdict(
            "inconclusive",
            f"The limit {gate.text} was not exceeded, but the evidence is {reached.level}, not {gate.level}.",
            reached.missing,
            record,
        )
    return Verdict("pass", f"{found}: within the limit {gate.text} ({value:.3g}).", [], record)


def gravest(codes: Iterable[int]) -> int:
    """The exit code of several audits: a failed gate, else one that cannot tell, else a pass."""
    return next((code for code in (1, 4) if code in set(codes)), 0)


def _name(target: dict[str, Any]) -> str:
    return f"{target['model']} ({target['defense']}) at {target['cut']}"


def _twin(target: dict[str, Any], targets: list[dict[str, Any]]) -> str:
    """What the undefended network gives away at the same place, when it was audited too."""
    place = ("model", "cut", "seed")
    for other in targets:
        if other["defense"] == "none" != target["defense"] and all(other.get(k) == target.get(k) for k in place):
            return f" ({max(other['worst_case']['leak']['mean'], 0):.0%} without the defence)"
    return ""


def _controls(flags: list[dict[str, str]]) -> str:
    failed = sorted({flag["where"] for flag in flags if flag["id"] in CONTROLS_FAILED})
    return f"a control failed for {', '.join(failed)}."
