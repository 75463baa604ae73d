"""The audit as Markdown for a job page or a model card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leakscope.core.escaping import markdown as text
from leakscope.core.escaping import markdown_block, markdown_code
from leakscope.core.reports import AuditReport, ControlReport, GateReport
from leakscope.core.results import Summary
from leakscope.core.words import CONTROLS, EVIDENCE, SEVERITIES, VERDICTS
from leakscope.report import words
from leakscope.report.flags import causes
from leakscope.report.numbers import NOTHING, duration, interval, moment, number, percent, share
from leakscope.report.targets import Target, measured_leak, short_names, targets_of


def markdown(report: AuditReport) -> str:
    """Verdict, one row per target, floors, controls, flags, and the command to repeat it."""
    status, meaning = VERDICTS[report.verdict]
    level, level_meaning = EVIDENCE[report.evidence.level]
    targets = targets_of(report)
    blocks = [
        f"# Leakscope: {status}",
        f"**{text(report.sentence)}**",
        f"{meaning} Evidence {report.evidence.level}, {level.lower()}: {level_meaning}",
        _gate(report.gate),
        _measured(report),
        _bullets(text(reason) for reason in report.reasons),
        "## Targets",
        _targets(targets, short_names(report.results)),
        *_bounds(targets),
        "## Floors",
        _floors(report.floors),
        "## Controls",
        _bullets(_control(control) for control in report.controls),
        *_flags(report),
        "## Reproduce",
        markdown_block(report.command),
        words.provenance(report.provenance),
        f"{moment(report.created)}, {duration(report.seconds)}, "
        + ", ".join(f"{text(name)} {text(version)}" for name, version in report.versions.items()),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def outcome(passed: bool | None) -> str:
    return "not run" if passed is None else "passed" if passed else "failed"


def _control(control: ControlReport) -> str:
    return f"**{CONTROLS[control.kind]}: {outcome(control.passed)}.** {text(words.sentence(control.what))}"


def _gate(gate: GateReport | None) -> str:
    if gate is None:
        return ""
    kept = "kept" if gate.held else "not kept"
    return f"Gate `{markdown_code(gate.text)}`: {kept}, measured {number(gate.value)} ({text(gate.where)})."


def _measured(report: AuditReport) -> str:
    found = measured_leak(report)
    return "" if found is None else f"Measured: at least {share(found.leak.mean)} ({text(found.name)})."


def _targets(targets: list[Target], names: Mapping[str, str]) -> str:
    use = text(words.capital(next((target.record.use for target in targets), "accuracy")))
    head = ("Target", use, "Strongest attack", "Leak", "Interval", "Worst victim", "All attacks")
    return table(head, (_row(target, names) for target in targets))


def _row(target: Target, names: Mapping[str, str]) -> tuple[str, ...]:
    leak, strongest = target.leak, target.strongest
    return (
        text(target.name),
        percent(target.record.accuracy),
        NOTHING if strongest is None else text(names[strongest.attack.label]),
        number(None if leak is None else leak.mean),
        NOTHING if leak is None else interval(leak) or NOTHING,
        number(None if leak is None else leak.worst),
        number(None if target.worst_case is None else target.worst_case.mean),
    )


def _bounds(targets: list[Target]) -> list[str]:
    bounded = [(target, bound) for target in targets if (bound := target.found.bound) is not None]
    if not bounded:
        return []
    head = (
        "Computed, not measured", "Noise", "MSE at least (entropy)", "MSE at least (rate)", "MSE at least (Fisher)",
        "Without bias (1/dFIL)", "Mean picture", "Best attack",
    )  # fmt: skip
    rows = (
        (
            text(target.name), number(bound.sigma), number(bound.entropy), number(bound.rate),
            number(bound.fisher or None), number(bound.unbiased or None), number(bound.blind),
            target.beside_bound or NOTHING,
        )
        for target, bound in bounded
    )  # fmt: skip
    assumed = "; ".join(text(assumption) for assumption in bounded[0][1].assumptions)
    beaten = any(target.beside_bound == "beaten" for target, _ in bounded)
    return [
        "## Bound",
        table(head, rows),
        f"It assumes that {assumed}.",
        words.BEATEN if beaten else "",
    ]


def _floors(floors: Mapping[str, Mapping[str, Summary]]) -> str:
    """What an attacker has who observes nothing; the oracle, which looks at the victim, stands outside the table."""
    names = list(dict.fromkeys(name for scores in floors.values() for name in scores))
    told = {floor: words.FLOORS.get(floor, text(floor)) for floor in floors}
    rows = (
        (told[floor], *(number(scores[name].mean if name in scores else None) for name in names))
        for floor, scores in floors.items()
        if floor not in words.ORACLES
    )
    oracles = (
        f"{told[floor]}: {', '.join(f'{text(name)} {number(score.mean)}' for name, score in scores.items())}. "
        "No attacker can look, so this is no floor."
        for floor, scores in floors.items()
        if floor in words.ORACLES
    )
    return "\n\n".join([table(("Without observing the features", *map(text, names)), rows), *oracles])


def _flags(report: AuditReport) -> list[str]:
    """One line per cause, with every place where it was found."""
    told = (
        f"`{markdown_code(group.id)}` ({SEVERITIES[group.severity].lower()}): {text(group.explanation)} "
        f"Found at: {'; '.join(text(where) for where in group.where)}."
        for group in causes(report)
    )
    return ["## Flags", _bullets(told) or "None raised."]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *map(list, rows)])


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
