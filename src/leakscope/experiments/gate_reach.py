"""Whether a gate can be passed at all: checked before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.auditing.verdict import EXPOSED, Gate
from leakscope.core.words import LEVELS

if TYPE_CHECKING:
    from leakscope.experiments.plan import Plan
    from leakscope.experiments.scene import Scene


def out_of_range(gate: Gate, scene: Scene) -> str | None:
    """Why a limit means nothing: its metric never takes such a value."""
    low: float | None
    high: float | None
    low, high = 0.0, 1.0
    if gate.metric != EXPOSED:
        metric = next(own for own in scene.metrics if own.name == gate.metric)
        low, high = metric.limits if scene.data.pixels or gate.metric == "leak" else (None, None)
    if (low is None or gate.limit >= low) and (high is None or gate.limit <= high):
        return None
    ends = [f"{low:g} or more" if low is not None else "", f"{high:g} or less" if high is not None else ""]
    return f"the gate {gate.text!r}: a limit on {gate.metric} is {' and '.join(end for end in ends if end)}"


def unreachable(plan: Plan) -> str | None:
    """Why the level that the gate demands cannot come out of this plan, with the remedy; None: it can."""
    if plan.gate is None or plan.gate.level is None:
        return None
    wanted, missing = LEVELS.index(plan.gate.level), []
    evidence = plan.gate.level if plan.gate.level != "E3" else "E2"
    if wanted >= 1:
        missing = _for_e1(plan, evidence)
    if wanted >= 2 and plan.config.evidence != "E2":
        missing.append("further checks of the strongest attack: give --evidence E2")
    if wanted >= 2 and not plan.scene.threat.knows_defense:
        missing.append("an attacker who knows the defence: leave threat.knows_defense out")
    if not missing:
        return None
    return (
        f"the gate {plan.gate.text!r} can never be passed here: {plan.gate.level} needs {', and '.join(missing)}; "
        f"or demand less, such as '{plan.gate.text.split(' at ')[0]}'"
    )


def _for_e1(plan: Plan, evidence: str) -> list[str]:
    missing = []
    if plan.suite != "full":
        remedy = "leave `attacks` (--attack) out" if plan.config.attacks else f"give --evidence {evidence}"
        missing.append(f"the full suite of attacks: {remedy}, or name it with --attack full")
    elif not all(any(attack.adapts for attack in own) for own in plan.suited.values()):
        missing.append("an attack on every target that trains on what it releases: grant features and query")
    if len(plan.seeds) < 3:
        remedy = "give three" if plan.config.seeds else f"give --evidence {evidence}"
        missing.append(f"three seeds: {remedy}")
    twins = [defense for defense in plan.defenses if defense.kind_name == "none"]
    if not twins or (plan.scene.architecture.foreign and not plan.explicit_twin):
        missing.append("an undefended twin: name `none` beside the defence")
    return missing
