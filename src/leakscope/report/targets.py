"""The targets of an audit in the order and with the names that every rendering uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leakscope.core.reports import AuditReport, GroupReport, TargetReport
from leakscope.core.results import AttackResult, Method, Summary, TargetRecord
from leakscope.core.words import FlagId
from leakscope.report.words import ORACLES

#: A label up to this long is shown as it is.
SHORT = 40

#: A bound is tight when the best attack's error is at most this many times as large.
TIGHT = 1.2


@dataclass(frozen=True)
class Target:
    """One target, its number on the page, and its attacks with the strongest first."""

    number: int
    found: TargetReport
    results: tuple[AttackResult, ...]
    seed_matters: bool  # several seeds were audited, so a name must say which

    @property
    def record(self) -> TargetRecord:
        return self.found.record

    @property
    def title(self) -> str:
        return defense_name(self.record.defense)

    @property
    def place(self) -> str:
        seed = f", seed {self.record.seed}" if self.seed_matters else ""
        return f"{network_name(self.record.model)} at {self.record.cut}{seed}"

    @property
    def name(self) -> str:
        return f"{self.title}, {self.place}"

    @property
    def strongest(self) -> AttackResult | None:
        first = self.results[0] if self.results else None
        return first if first is not None and first.key == self.found.strongest else None

    @property
    def leak(self) -> Summary | None:
        """What the strongest attack recovered."""
        return None if self.strongest is None else self.strongest.metrics.get("leak")

    @property
    def worst_case(self) -> Summary | None:
        """The strongest attack, corrected for having been chosen among several."""
        return self.found.worst_case.get("leak")

    @property
    def beside_bound(self) -> str:
        """How the smallest error of any attack stands to the highest bound; nothing without both."""
        bound = self.found.bound
        errors = [result.metrics["mse"].mean for result in self.results if "mse" in result.metrics]
        highest = 0.0 if bound is None else max(bound.entropy, bound.rate, bound.fisher)
        if not errors or highest <= 0:
            return ""
        ratio = min(errors) / highest
        if ratio < 1:
            return "beaten"
        return "tight" if ratio <= TIGHT else f"{ratio:.1f} times the bound"


def targets_of(report: AuditReport) -> list[Target]:
    several = len({target.record.seed for target in report.targets}) > 1
    listed = []
    for place, target in enumerate(report.targets, start=1):
        own = sorted(report.of_target(target.record.key), key=lambda r: (r.key != target.strongest, -_leak(r)))
        listed.append(Target(place, target, tuple(own), several))
    return listed


def defense_name(defense: Method) -> str:
    return "No defence" if defense.kinds == ("none",) else defense.label


def network_name(model: Method) -> str:
    """A network by its plain name: never `file:path=…`."""
    return model.plain


def short_names(results: Iterable[AttackResult]) -> dict[str, str]:
    """For the label of each attack what is shown: its kind where the label is long and nobody else has that kind."""
    attacks = {result.attack.label: result.attack.kind for result in results}
    kinds = list(attacks.values())
    return {label: kind if len(label) > SHORT and kinds.count(kind) == 1 else label for label, kind in attacks.items()}


def is_known(value: float | None) -> bool:
    """There is a number, and it can be drawn."""
    return value is not None and math.isfinite(value)


def known_leak(leak: Summary | None) -> Summary | None:
    """The summary, when its mean can be drawn."""
    return leak if leak is not None and is_known(leak.mean) else None


def _leak(result: AttackResult) -> float:
    leak = known_leak(result.metrics.get("leak"))
    return -math.inf if leak is None else leak.mean


def highest_floor(floors: Mapping[str, Mapping[str, Summary]]) -> tuple[str, float] | None:
    """The best that can be had without observing anything, in `leak`, and whose it is; an oracle observes."""
    known = [
        (name, leak.mean)
        for name, scores in floors.items()
        if name not in ORACLES and (leak := known_leak(scores.get("leak"))) is not None
    ]
    return max(known, key=lambda pair: pair[1], default=None)


def measured_leak(report: AuditReport) -> GroupReport | None:
    """The defence from which most was rebuilt, over all its seeds, of those whose privacy is claimed: as the verdict.

    None where nothing was measured, or where the evaluation itself leaks and no figure can be believed.
    """
    if any(flag.id is FlagId.NEGATIVE_CONTROL for flag in report.flags):
        return None
    judged = [group for group in report.groups if not group.undefended] or list(report.groups)
    return max((g for g in judged if is_known(g.leak.mean)), key=lambda group: group.leak.mean, default=None)
