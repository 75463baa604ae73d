"""Gate and verdict, computed once, before anything is rendered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leakscope.core.errors import UsageError
from leakscope.core.results import Direction, EvidenceReport, Flag, GateReport, Summary, TargetRecord, TargetReport
from leakscope.core.words import CONTROLS_FAILED, LEVELS, Verdict

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
        """The pessimistic end of the interval: a pass must not hang on luck."""
        return summary.high if self.below else summary.low

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.below else value >= self.limit


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
    targets: Sequence[TargetReport], flags: Iterable[Flag], reached: EvidenceReport, gate: Gate | None, found: str
) -> Judgement:
    """One verdict. A found leak fails whatever the flags; a clean pass needs all of them quiet.

    Targets with a defence are judged; undefended ones beside them are there to compare with. `found` is the
    goal's sentence, with room for {share}, {target} and {twin}.
    """
    flags = list(flags)
    judged = [target for target in targets if not target.record.undefended] or list(targets)
    blocking = tuple(sorted({f"{flag.id} ({flag.where})" for flag in flags if flag.blocks}))
    worst = max(judged, key=lambda target: target.worst_case["leak"].mean)
    share = max(worst.worst_case["leak"].mean, 0)
    said = found.format(share=f"{share:.0%}", target=worst.record.name, twin=_twin(worst.record, targets))
    if gate is None:
        failed = sorted({flag.where for flag in flags if flag.id in CONTROLS_FAILED})
        if failed:
            sentence = f"No statement is possible: a control failed for {', '.join(failed)}."
            return Judgement(Verdict.INCONCLUSIVE, sentence, blocking, None)
        return Judgement(Verdict.MEASURED, f"{said}; no limit was set.", blocking, None)

    values = [(gate.value(target.worst_case[gate.metric]), target) for target in judged]
    value, where = (max if gate.below else min)(values, key=lambda pair: pair[0])
    held = gate.holds(value)
    report = GateReport(gate.text, gate.metric, gate.limit, gate.level, value, held, where.record.name)
    if not held:
        sentence = f"{said}: more than the limit {gate.text} allows ({value:.3g})."
        return Judgement(Verdict.FAIL, sentence, blocking, report)
    kept = f"The limit {gate.text} was not exceeded, but"
    if blocking:
        return Judgement(Verdict.INCONCLUSIVE, f"{kept} the attacks cannot be relied on.", blocking, report)
    if gate.level is not None and LEVELS.index(reached.level) < LEVELS.index(gate.level):
        sentence = f"{kept} the evidence is {reached.level}, not {gate.level}."
        return Judgement(Verdict.INCONCLUSIVE, sentence, reached.missing, report)
    return Judgement(Verdict.PASS, f"{said}: within the limit {gate.text} ({value:.3g}).", (), report)


def gravest(codes: Iterable[int]) -> int:
    """The exit code of several audits: a failed gate, else one that cannot tell, else a pass."""
    return next((code for code in (1, 4) if code in set(codes)), 0)


def _twin(target: TargetRecord, targets: Sequence[TargetReport]) -> str:
    """What the undefended network gives away at the same place, when it was audited too."""
    for other in targets:
        record = other.record
        same = (record.model, record.cut, record.seed) == (target.model, target.cut, target.seed)
        if same and record.undefended and not target.undefended:
            return f" ({max(other.worst_case['leak'].mean, 0):.0%} without the defence)"
    return ""
