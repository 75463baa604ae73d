"""The audit as Markdown for a job page or a model card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from leakscope.report import words
from leakscope.report.names import readable
from leakscope.report.numbers import NOTHING, duration, interval, moment, number, percent
from leakscope.report.targets import Target, targets_of


def markdown(audit: Mapping[str, Any]) -> str:
    """Verdict, one row a target, floors, controls, flags, and the command to repeat it."""
    audit = readable(audit)
    status, meaning = words.VERDICTS[audit["verdict"]]
    level, level_meaning = words.EVIDENCE[audit["evidence"]]
    blocks = [
        f"# Leakscope: {status}",
        f"**{text(audit['sentence'])}**",
        f"{meaning} Evidence {audit['evidence']}, {level.lower()}: {level_meaning}",
        _gate(audit["gate"]),
        _bullets(text(reason) for reason in audit["reasons"]),
        "## Targets",
        _targets(targets_of(audit)),
        *_bounds(targets_of(audit)),
        "## Floors",
        _floors(audit["floors"]),
        "## Controls",
        _bullets(_control(name, control) for name, control in audit["controls"].items()),
        *_flags(audit["flags"]),
        "## Reproduce",
        fenced(audit["command"]),
        f"{moment(audit['created'])}, {duration(audit['seconds'])}, "
        + ", ".join(f"{text(name)} {text(version)}" for name, version in audit["versions"].items()),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def outcome(passed: bool | None) -> str:
    return "not run" if passed is None else "passed" if passed else "failed"


def _control(name: str, control: Mapping[str, Any]) -> str:
    title = words.CONTROLS.get(name, text(name))
    return f"**{title}: {outcome(control['passed'])}.** {text(words.sentence(control['what']))}"


def _gate(gate: Mapping[str, Any] | None) -> str:
    if gate is None:
        return ""
    kept = "kept" if gate["held"] else "not kept"
    return f"Gate `{code(gate['text'])}`: {kept}, measured {number(gate['value'])} ({text(gate['where'])})."


def _targets(targets: list[Target]) -> str:
    head = ("Target", "Accuracy", "Strongest attack", "Leak", "Interval", "Worst victim", "Worst case over attacks")
    return table(head, (_row(target) for target in targets))


def _row(target: Target) -> tuple[str, ...]:
    leak, worst_case = target.leak or {}, target.worst_case or {}
    return (
        text(target.name),
        percent(target.facts["accuracy"]),
        text(target.facts.get("strongest") or NOTHING),
        number(leak.get("mean")),
        interval(leak) or NOTHING,
        number(leak.get("worst")),
        number(worst_case.get("mean")),
    )


def _bounds(targets: list[Target]) -> list[str]:
    bounded = [(target, target.facts["bound"]) for target in targets if target.facts.get("bound")]
    if not bounded:
        return []
    head = ("Computed, not measured", "Noise", "MSE at least (entropy)", "MSE at least (rate)", "Mean picture")
    rows = (
        (text(target.name), *(number(bound[name]) for name in ("sigma", "entropy", "rate", "blind")))
        for target, bound in bounded
    )
    assumed = "; ".join(text(assumption) for assumption in bounded[0][1]["assumptions"])
    return ["## Bound", table(head, rows), f"It assumes that {assumed}."]


def _floors(floors: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for scores in floors.values() for name in scores))
    rows = (
        (words.FLOORS.get(floor, text(floor)), *(number(scores.get(name, {}).get("mean")) for name in names))
        for floor, scores in floors.items()
    )
    return table(("Without observing anything", *map(text, names)), rows)


def _flags(flags: list[Mapping[str, Any]]) -> list[str]:
    told = (
        f"`{code(flag['id'])}` ({words.SEVERITIES.get(flag['severity'], flag['severity']).lower()}), "
        f"{text(flag['where'])}: {text(flag['explanation'])}"
        for flag in flags
    )
    return ["## Flags", _bullets(told) or "None raised."]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *map(list, rows)])


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def text(value: object) -> str:
    """Any text as itself: one line, with Markdown's and HTML's marks escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", " ".join(str(value).split()))


def code(value: object) -> str:
    """Inside a code span only the backtick and the table's bar need care."""
    return " ".join(str(value).split()).replace("`", "'").replace("|", "\\|")


def fenced(command: str) -> str:
    longest = max((len(run) for run in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{command}\n{fence}"
