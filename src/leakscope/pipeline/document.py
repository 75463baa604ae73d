"""The document of a finished audit: what audit.json says, and the pictures that go with it."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from leakscope.auditing.flags import with_blocks
from leakscope.auditing.floors import FLOORS
from leakscope.auditing.verdict import evidence, judge
from leakscope.core.attack import Attack
from leakscope.core.defense import Defense, members
from leakscope.core.spec import label
from leakscope.metrics.recognition import Measure
from leakscope.pipeline.blocks import block_tables
from leakscope.pipeline.bounds import bound_of
from leakscope.pipeline.class_controls import class_floors
from leakscope.pipeline.desk import Desk, Finding
from leakscope.pipeline.execute import Target, score, summaries, target_plan
from leakscope.pipeline.outside import Outside
from leakscope.pipeline.plan import Plan, resolved_config

SCHEMA = "leakscope/audit/1"
#: What the attacker wants, by whether classes are rebuilt.
GOALS = {False: "rebuild the picture a user sent", True: "rebuild what the private classes look like"}


@dataclass
class Audit:
    """A finished audit: the document and the pictures that go with it."""

    document: dict[str, Any]
    pictures: dict[str, Tensor]

    @property
    def verdict(self) -> str:
        return str(self.document["verdict"])

    @property
    def exit_code(self) -> int:
        return int(self.document["exit_code"])

    @property
    def results(self) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = self.document["results"]
        return results


def _worst_case(plan: Plan, findings: list[Finding]) -> dict[str, dict[str, float]]:
    """For each picture the attack that rebuilt it best; summarised over pictures."""
    merged = {}
    for metric in plan.metrics:
        if metric.of_set:
            continue
        stacked = torch.stack([finding.values[metric.name] for finding in findings])
        merged[metric.name] = stacked.amax(0) if metric.more_leak == "high" else stacked.amin(0)
    return summaries(merged, plan.metrics)


def _adaptive(defense: Defense, attacks: list[Attack]) -> bool:
    """Whether every part of a defence meets an attack made against it."""
    present = {attack.kind_name for attack in attacks}
    return all(part.kind_name == "none" or present & set(part.adaptive) for part in members(defense))


def _evidence_conditions(desk: Desk, passed: dict[str, Any], flat_budget: bool | None) -> dict[str, Any]:
    plan = desk.plan
    return {
        "E0": [("at least one attack", bool(plan.attacks)), ("floors subtracted", True)],
        "E1": [
            ("the full suite of attacks", plan.suite == "full"),
            (f"three seeds (here {len(plan.seeds)})", len(plan.seeds) >= 3),
            ("positive control passed", passed["positive"]["passed"]),
            ("negative control passed", passed["negative"]["passed"]),
            # Without it nobody can tell what the defence cost, or whether it hid anything.
            ("an undefended twin beside every defence", any(d.kind_name == "none" for d in plan.defenses)),
        ],
        "E2": [
            ("an attack made against each defence", all(_adaptive(d, own) for (_, d), own in plan.suited.items())),
            ("canary found", bool(passed["canary"]["passed"])),
            ("twice the budget does not help", bool(flat_budget)),
        ],
        "E3": [("an outside attack or a stated bound", _contested(desk))],
    }


def _contested(desk: Desk) -> bool:
    """Whether somebody else has attacked every defended target (every target when none is defended)."""
    defended = [key for key, target in desk.targets.items() if target.record["defense"] != "none"] or [*desk.targets]
    return all(any(isinstance(finding.case.attack, Outside) for finding in desk.findings[key]) for key in defended)


def finished(desk: Desk, passed: dict[str, Any], flat_budget: bool | None, command: str, started: float) -> Audit:
    plan = desk.plan
    targets: list[dict[str, Any]] = []
    maps: dict[str, Tensor] = {}
    for key, target in desk.targets.items():
        findings = desk.findings[key]
        shown = {name: value for name, value in target.record.items() if name not in {"plan", "input"}}
        strongest = max(findings, key=lambda finding: finding.leak)
        defense = _defense_of(desk, target)
        trained = desk.place.store.get("trained", _trained_key(desk, target, defense))
        blocks, own_maps = block_tables(desk, target, findings)
        maps |= own_maps
        targets.append(
            {
                "key": key,
                **shown,
                "notes": trained.record["notes"] if trained else {},
                "strongest": strongest.row["attack"],
                "worst_case": _worst_case(plan, findings),
                "bound": bound_of(plan, defense, target, desk.place),
                **({} if blocks is None else {"blocks": blocks}),
            }
        )
    notes = {finding.where: finding.row["notes"] for findings in desk.findings.values() for finding in findings}
    raised = [with_blocks(flag, notes.get(flag.where, {})).as_dict() for flag in dict.fromkeys(desk.flags)]
    reached = evidence(_evidence_conditions(desk, passed, flat_budget))
    verdict = judge(targets, raised, reached, plan.gate, of_classes=plan.rebuilds_classes)
    shown_pictures, tensors = _pictures(desk)
    results = [finding.row for findings in desk.findings.values() for finding in findings]
    document = {
        "schema": SCHEMA,
        "verdict": verdict.status,
        "sentence": verdict.sentence,
        "reasons": verdict.reasons,
        "gate": verdict.gate,
        "exit_code": verdict.exit_code,
        "evidence": reached.level,
        "evidence_detail": {"met": reached.met, "missing": reached.missing},
        "seconds": round(time.monotonic() - started, 2),
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "threat": {
            "access": sorted(plan.threat.access),
            "public_data": plan.threat.public_data,
            "knows_defense": plan.threat.knows_defense,
            "queries": plan.threat.queries,
            "goal": GOALS[plan.rebuilds_classes],
        },
        "data": {
            "name": plan.data_name,
            "shape": list(plan.splits.private.shape),
            "classes": len(plan.splits.private.classes),
            **{name: {"images": len(part), "digest": part.digest()} for name, part in vars(plan.splits).items()},
            "victims": len(plan.victims),
        },
        "config": resolved_config(plan),
        "versions": {
            "leakscope": version("leakscope"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "targets": targets,
        "results": results,
        "left_out": plan.left_out,
        "metrics": {
            **{m.name: {"more_leak": m.more_leak, "what": _first_line(m)} for m in plan.metrics},
            **{name: {"more_leak": None, "unavailable": why} for name, why in plan.unavailable.items()},
        },
        "floors": class_floors(desk) if plan.rebuilds_classes else _floors(plan),
        "controls": passed,
        "flags": raised,
        "pictures": shown_pictures,
    }
    return Audit(document, tensors | maps)


def _defense_of(desk: Desk, target: Target) -> Defense:
    return next(d for d in desk.plan.defenses if label(d) == target.record["defense"])


def _trained_key(desk: Desk, target: Target, defense: Defense) -> str:
    return target_plan(desk.plan, target.record["cut"], defense, target.record["seed"]).trained_key


def _first_line(method: object) -> str:
    if isinstance(method, Measure):
        return method.what
    return (type(method).__doc__ or "").strip().splitlines()[0]


def _floors(plan: Plan) -> dict[str, dict[str, dict[str, float]]]:
    public, victims = plan.splits.public, plan.victims
    metrics = [metric for metric in plan.metrics if not metric.of_set]
    return {
        name: summaries(score(guess(public, victims), victims, public, metrics, plan.data_root), metrics)
        for name, guess in FLOORS.items()
    }


#: Pictures shown: four at each end and four in the middle of the ranking, by rule.
SHOWN = 4


def _pictures(desk: Desk) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """For every result the pictures at the most leaked decile, the median and the least leaked decile."""
    if not desk.plan.victims.pixels:
        return {}, {}
    described, tensors = {}, {}
    for findings in desk.findings.values():
        for finding in findings:
            leak = finding.values["leak"]
            order = leak.argsort(descending=True)
            count = len(order)
            each = min(SHOWN, max(1, count // 3))
            starts = {"most leaked": count // 10, "median": count // 2, "least leaked": count - count // 10}
            chosen, groups = [], []
            for group, centre in starts.items():
                first = min(max(centre - each // 2, 0), count - each)
                chosen += order[first : first + each].tolist()
                groups += [group] * each
            index = torch.tensor(chosen)
            described[finding.key] = {"groups": groups, "leak": leak[index].tolist(), "victims": chosen}
            each_guess = finding.guess[:: len(finding.guess) // count]  # the first of each identity's
            for name, images in (("truth", desk.plan.victims.images), ("guess", each_guess)):
                tensors[f"{name}/{finding.key}"] = (images[index] * 255).round().to(torch.uint8)
    return described, tensors
