"""How well a statement is shown: the conditions of every evidence level."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.auditing.verdict import evidence
from leakscope.core.reports import EvidenceReport


@dataclass(frozen=True)
class Shown:
    """What an audit did, as far as evidence depends on it."""

    attacks: int
    full_suite: bool
    seeds: int
    positive: bool
    negative: bool
    twin: bool  # an undefended target beside every defence
    adaptive: bool  # an attack that trains on what each defence releases, with all that is granted
    canary: bool
    flat_budget: bool
    contested: bool  # an outside attack on every defended target that beats what the label tells


def level_of(shown: Shown) -> EvidenceReport:
    """The level that was reached, with what was met and what is missing."""
    return evidence(
        {
            "E0": [("at least one attack", shown.attacks > 0), ("floors subtracted", True)],
            "E1": [
                ("the full suite of attacks", shown.full_suite),
                (f"three seeds (here {shown.seeds})", shown.seeds >= 3),
                ("positive control passed", shown.positive),
                ("negative control passed", shown.negative),
                # Without it nobody can tell what the defence cost, or whether it hid anything.
                ("an undefended twin beside every defence", shown.twin),
            ],
            "E2": [
                ("an attack made against each defence", shown.adaptive),
                ("a canary planted in the defended features found", shown.canary),
                ("a larger budget, another start and more data do not help", shown.flat_budget),
            ],
            "E3": [("an outside attack that rebuilds more than the label tells", shown.contested)],
        }
    )
