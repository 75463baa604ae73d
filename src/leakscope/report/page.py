"""The report as one HTML file: no network, no script, nothing that needs either."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from jinja2 import Environment
from markupsafe import Markup, escape
from numpy.typing import NDArray

from leakscope.core import words as audit_words
from leakscope.core.reports import AuditReport
from leakscope.core.results import AttackResult, Summary
from leakscope.report import numbers, templating, words
from leakscope.report.blocks import sheets
from leakscope.report.controls import AT_MOST, nearest
from leakscope.report.flags import causes, told
from leakscope.report.outline import outline
from leakscope.report.pictures import Galleries, Pair, galleries
from leakscope.report.plot import Curve, bar, curve, curve_words, marks_of, scatter
from leakscope.report.targets import (
    Target,
    highest_floor,
    known_leak,
    measured_leak,
    network_name,
    short_names,
    targets_of,
)


@cache
def _templates() -> Environment:
    environment = templating.environment()
    readings = (numbers.number, numbers.percent, numbers.interval, numbers.share, numbers.shape, numbers.duration,
                numbers.moment, network_name, curve_words)  # fmt: skip
    for read in readings:
        environment.filters[read.__name__] = read
    environment.filters["outline"] = outline
    environment.filters["nearest"] = nearest
    environment.globals["at_most"] = AT_MOST
    environment.filters["slug"] = slug
    environment.filters["breakable"] = breakable
    environment.filters["sentence"] = words.sentence
    environment.filters["capital"] = words.capital
    return environment


def slug(text: str) -> str:
    """A fragment identifier: letters, digits and hyphens."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())


def breakable(text: str) -> Markup:
    """A long specification that may be broken after the `+` and `,` between its parts, and nowhere else."""
    parts = [escape(part) for part in re.split(r"(?<=[+,])", text)]
    return Markup("<wbr>").join(parts)


@dataclass(frozen=True)
class FloorRow:
    """One line at the foot of the scores."""

    name: str
    metrics: Mapping[str, Summary]


#: Targets in the summary, so that it stays on one page; and letters of its command.
BRIEF, LONGEST = 8, 400


def _recovered(target: Target) -> float:
    """By which targets are ranked in the summary; those without a figure come last."""
    leak = known_leak(target.leak)
    return -math.inf if leak is None else leak.mean


@dataclass(frozen=True)
class Brief:
    """What the summary on one page shows: the targets that leaked most, and the worst picture of what is judged."""

    targets: list[Target]
    more: int
    worst: Pair | None
    whose: str  # the target that gave it away
    reasons: tuple[str, ...]
    command: str
    use: str  # what is beside leak: accuracy, or what was measured in its place

    @classmethod
    def of(cls, report: AuditReport, targets: list[Target], shown: Galleries) -> Brief:
        ranked = sorted(targets, key=_recovered, reverse=True)
        judged = [target for target in targets if not target.record.undefended] or targets
        pairs = [
            (pair.leak, target.name, pair)
            for target in judged
            if target.strongest and (pair := shown.worst(target.strongest.key))
        ]
        command = report.command if len(report.command) <= LONGEST else report.command[:LONGEST] + " …"
        use = next((target.record.use for target in targets), "accuracy")
        _, whose, worst = max(pairs, key=lambda found: found[0], default=(0.0, "", None))
        return cls(ranked[:BRIEF], len(ranked[BRIEF:]), worst, whose, told(report)[:3], command, use)


def render_html(report: AuditReport, pictures: Mapping[str, NDArray[np.uint8]]) -> str:
    """The whole page. Every text of the audit is escaped, and a content policy forbids script and network."""
    return _rendered("report.html", report, pictures)


def render_onepage(report: AuditReport, pictures: Mapping[str, NDArray[np.uint8]]) -> str:
    """The summary alone: one sheet of paper."""
    return _rendered("alone.html", report, pictures)


def _rendered(template: str, report: AuditReport, pictures: Mapping[str, NDArray[np.uint8]]) -> str:
    environment = _templates()
    style = templating.source("report.css")
    names = short_names(report.results)
    targets = targets_of(report)
    floor = highest_floor(report.floors)
    level = None if floor is None else floor[1]
    gate = report.gate.limit if report.gate is not None and report.gate.metric == "leak" else None
    shown = galleries(report, pictures)
    measured = {name for scores in _all_scores(report) for name in scores}
    return environment.get_template(template).render(
        audit=report,
        alone=template == "alone.html",
        words=words,
        verdicts=audit_words.VERDICTS,
        levels=audit_words.EVIDENCE,
        controls=audit_words.CONTROLS,
        severities=audit_words.SEVERITIES,
        subject=words.subject_of(report.goal),
        names=names,
        settings={short: full for full, short in names.items() if short != full},
        style=Markup(style),  # noqa: S704 (our own file, hashed into the page's policy)
        style_hash=templating.policy_hash(style),
        targets=targets,
        measured=measured_leak(report),
        bars={target.number: bar(leak, level, gate) for target in targets if (leak := known_leak(target.leak))},
        curves={target.number: _curves(target) for target in targets},
        floor=floor,
        gate_limit=gate,
        plot=scatter(marks_of(targets), level, gate),
        blocks=sheets(targets, pictures, names),
        bounds=[target for target in targets if target.found.bound is not None],
        beaten=words.BEATEN,
        gallery=shown,
        brief=Brief.of(report, targets, shown),
        metrics=[metric for metric in report.metrics if metric.name in measured],
        unavailable=[metric for metric in report.metrics if metric.unavailable is not None],
        floors=_floors(report, oracles=False),
        oracles=_floors(report, oracles=True),
        flags=causes(report),
        reasons=told(report),
    )


def _all_scores(report: AuditReport) -> list[Mapping[str, Summary]]:
    return [*(result.metrics for result in report.results), *report.floors.values()]


def _floors(report: AuditReport, *, oracles: bool) -> list[FloorRow]:
    return [
        FloorRow(words.FLOORS.get(name, name), scores)
        for name, scores in report.floors.items()
        if (name in words.ORACLES) == oracles
    ]


def _curves(target: Target) -> list[tuple[AttackResult, Curve]]:
    """Attacks that say how their leak grew with time."""
    return [(result, drawn) for result in target.results if (drawn := curve(result.diagnostics.anytime))]
