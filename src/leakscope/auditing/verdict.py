"""Gate and verdict, computed once, before anything is rendered."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leakscope.core.errors import UsageError
from leakscope.core.reports import EvidenceReport, GateReport, GroupReport, TargetReport
from leakscope.core.results import Direction, Flag, Summary
from leakscope.core.words import CONTROLS_FAILED, LEVELS, Verdict
from leakscope.stats.exposure import victims_needed

_GATE = re.compile(
    r"^\s*([\w\[\]-]+)\s*(<=|>=|<|>)\s*(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)\s*(?:at\s+(E[0-3]))?\s*$", re.IGNORECASE
)


@dataclass(frozen=True)
class Gate:
    """`leak<=0.2 at E1`: what a target may give away at most, and how well that must be shown."""

    text: str
    metric: str
    below: bool
    limit: float
    level: str | None

    @classmethod
    def parse(cls, text: str, metrics: Mapping[str, Direction]) -> Gate:
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

    def value(self, summary: Summary) -> float:
        """The pessimistic end of the interval, so that a pass does not depend on chance."""
        return summary.high if self.below else summary.low

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.below else value >= self.limit


#: Scores under one key may differ by so much between machines and numbers of threads (5e-6 was measured).
ROUNDING = 1e-5
#: The share of victims whose own picture was rebuilt almost whole: a gate may name it like a metric.
EXPOSED = "exposed"


@dataclass(frozen=True)
class _Reading:
    """What a gate reads of one group: the value itself, and the cautious end of its interval."""

    name: str
    value: float
    cautious: float
    victims: int

    def needed(self, gate: Gate) -> int | None:
        """How many victims would bring the cautious end to the limit, if the value stayed."""
        if gate.metric == EXPOSED:
            return victims_needed(gate.limit) if self.value == 0 else None
        distance, room = abs(self.cautious - self.value), abs(gate.limit - self.value)
        return None if room == 0 else math.ceil(self.victims * (distance / room) ** 2)


def _readings(gate: Gate, groups: Sequence[GroupReport], targets: Sequence[TargetReport]) -> list[_Reading]:
    if gate.metric == "leak":
        return [_Reading(g.name, g.leak.mean, gate.value(g.leak), g.leak.n) for g in groups]
    if gate.metric == EXPOSED:
        shares = [(g.name, g.exposed) for g in groups]
        return [_Reading(name, e.count / e.victims, e.upper, e.victims) for name, e in shares]
    own = [(t.record.name, t.worst_case[gate.metric]) for t in targets]
    return [_Reading(name, summary.mean, gate.value(summary), summary.n) for name, summary in own]


def evidence(conditions: Mapping[str, Sequence[tuple[str, bool]]]) -> EvidenceReport:
    """The highest level all of whose conditions, and those of the levels below it, hold."""
    met = [text for level in LEVELS for text, held in conditions.get(level, ()) if held]
    missing = [f"{level}: {text}" for level in LEVELS for text, held in conditions.get(level, ()) if not held]
    reached = LEVELS[0]
    for level in LEVELS[1:]:
        if level not in conditions or not all(held for _, held in conditions[level]):
            break
        reached = level
    return EvidenceReport(reached, tuple(met), tuple(missing))


@dataclass(frozen=True)
class Judgement:
    """What the audit says."""

    verdict: Verdict
    sentence: str
    reasons: tuple[str, ...]
    gate: GateReport | None


def judge(
    targets: Sequence[TargetReport],
    groups: Sequence[GroupReport],
    flags: Iterable[Flag],
    reached: EvidenceReport,
    gate: Gate | None,
    found: str,
) -> Judgement:
    """One verdict. A leak that was found fails whatever the flags; a pass needs that no flag blocks.

    What has a defence is judged; undefended twins are there to compare with. A limit that only the cautious end
    of an interval passes was not shown to be broken: too few victims were attacked to tell. `found` is the
    goal's sentence, with room for {share}, {target} and {twin}.
    """
    flags = list(flags)
    judged = [group for group in groups if not group.undefended] or list(groups)
    keys = {key for group in judged for key in group.targets}
    blocking = tuple(sorted({flag.reason for flag in flags if flag.blocks}))
    worst = max(judged, key=lambda group: group.leak.mean)
    share = max(worst.leak.mean, 0)
    said = found.format(share=f"{share:.0%}", target=worst.name, twin=_twin(worst, targets, groups))
    if gate is None:
        failed = sorted({flag.where for flag in flags if flag.id in CONTROLS_FAILED})
        if failed:
            sentence = f"{said}, at least: a control failed for {', '.join(failed)}, so more may be there."
            return Judgement(Verdict.INCONCLUSIVE, sentence, blocking, None)
        return Judgement(Verdict.MEASURED, f"{said}; no limit was set.", blocking, None)

    readings = _readings(gate, judged, [target for target in targets if target.record.key in keys])
    where = (max if gate.below else min)(readings, key=lambda reading: reading.cautious)
    broken = [reading for reading in readings if not gate.holds(reading.value)]
    held = gate.holds(where.cautious)
    needed = None if held or broken else where.needed(gate)
    near = _rounding(gate, readings)
    report = GateReport(
        gate.text, gate.metric, gate.limit, gate.level, where.cautious, held, where.name, needed
    )  # fmt: skip
    if broken:
        sentence = f"{said}: more than the limit {gate.text} allows ({where.value:.3g})."
        return Judgement(Verdict.FAIL, sentence, blocking + near, report)
    if not held:
        more = f"; about {needed} victims would decide it" if needed else ""
        reach = f"its interval reaches {where.cautious:.3g}{more}."
        sentence = f"{said}: {where.value:.3g} lies within the limit {gate.text}, but {reach}"
        return Judgement(Verdict.INCONCLUSIVE, sentence, blocking + near, report)
    kept = f"The limit {gate.text} was not exceeded, but"
    if blocking:
        return Judgement(Verdict.INCONCLUSIVE, f"{kept} the attacks cannot be relied on.", blocking, report)
    if gate.level is not None and LEVELS.index(reached.level) < LEVELS.index(gate.level):
        sentence = f"{kept} the evidence is {reached.level}, not {gate.level}."
        return Judgement(Verdict.INCONCLUSIVE, sentence, reached.missing, report)
    return Judgement(Verdict.PASS, f"{said}: within the limit {gate.text} ({where.cautious:.3g}).", near, report)


def _rounding(gate: Gate, readings: Sequence[_Reading]) -> tuple[str, ...]:
    """A word where another number of threads could have decided otherwise."""
    distance = min(abs(value - gate.limit) for own in readings for value in (own.value, own.cautious))
    if distance > ROUNDING * max(1.0, abs(gate.limit)):
        return ()
    return (
        f"what was measured lies within {ROUNDING:g} of the limit {gate.text}: another machine or number of threads "
        "rounds otherwise, and may decide otherwise",
    )


def gravest(codes: Iterable[int]) -> int:
    """The exit code of several audits: a failed gate, else one that cannot tell, else a pass."""
    return next((code for code in (1, 4) if code in set(codes)), 0)


def _twin(group: GroupReport, targets: Sequence[TargetReport], groups: Sequence[GroupReport]) -> str:
    """What the undefended network gives away at the same place, when it was audited too."""
    records = {target.record.key: target.record for target in targets}
    own = records[group.targets[0]]
    for other in groups:
        record = records[other.targets[0]]
        if other.undefended and not group.undefended and (record.model, record.cut) == (own.model, own.cut):
            return f" ({max(other.leak.mean, 0):.0%} without the defence)"
    return ""
