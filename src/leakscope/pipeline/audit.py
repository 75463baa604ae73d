"""The audit: targets × suite → scores against floors → controls, flags, evidence → one verdict."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from leakscope.auditing import controls, flags
from leakscope.auditing.flags import Flag
from leakscope.auditing.floors import FLOORS
from leakscope.auditing.verdict import evidence, judge
from leakscope.core import progress
from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.defense import Defense, members
from leakscope.core.spec import digest, label
from leakscope.pipeline.execute import (
    Case,
    Target,
    Workplace,
    realise,
    run_attack,
    run_scores,
    score,
    summaries,
    target_plan,
)
from leakscope.pipeline.plan import Plan, resolved_config

SCHEMA = "leakscope/audit/1"


@dataclass
class Finding:
    """One attack on one target, scored."""

    case: Case
    key: str
    guess: Tensor
    values: dict[str, Tensor]
    row: dict[str, Any]

    @property
    def leak(self) -> float:
        return float(self.row["metrics"]["leak"]["mean"])


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


@dataclass
class _Desk:
    """What piles up while an audit runs."""

    plan: Plan
    place: Workplace
    findings: dict[str, list[Finding]] = field(default_factory=lambda: defaultdict(list))
    targets: dict[str, Target] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)

    def attack(self, target: Target, attack: Attack, seed: int) -> Finding:
        plan = self.plan
        case = Case(target, attack, plan.threat, plan.splits.public, plan.victims, seed)
        attack_key, guess, notes = run_attack(case, self.place)
        key, values = run_scores(attack_key, guess, case, plan.metrics, plan.data_root, self.place)
        row = {
            "key": key,
            "target": target.key,
            **{name: target.record.get(name) for name in ("model", "defense", "cut", "seed", "accuracy")},
            "attack": label(attack),
            "flags": [],
            "metrics": summaries(values, plan.metrics),
            "seconds": notes.get("seconds", 0.0),
            "notes": notes,
        }
        return Finding(case, key, guess, values, row)


def run_audit(plan: Plan, place: Workplace, *, command: str) -> Audit:
    """Run a plan to its verdict. Whatever the store already holds is not computed again."""
    started = time.monotonic()
    desk = _Desk(plan, place)
    grid = [(cut, defense, seed) for seed in plan.seeds for cut in plan.cuts for defense in plan.defenses]
    with progress.stage("audit", len(grid) * len(plan.attacks)) as bar:
        for cut, defense, seed in grid:
            target = realise(plan, target_plan(plan, cut, defense, seed), place)
            desk.targets[target.key] = target
            for attack in plan.attacks:
                finding = desk.attack(target, attack, seed)
                desk.findings[target.key].append(finding)
                bar.advance(1, leak=finding.leak)
    passed = _controls(desk)
    _raise_flags(desk)
    flat_budget = _budget_is_flat(desk) if plan.config.evidence == "E2" else None
    return _document(desk, passed, flat_budget, command, started)


def _controls(desk: _Desk) -> dict[str, Any]:
    """Positive control for every attack, negative control for every result, canary when E2 is wanted."""
    plan = desk.plan
    first = next(iter(desk.targets.values()))
    shape = tuple(first.record["feature_shape"])
    classes = len(plan.splits.private.classes)
    identity = _stand_in(controls.identity_control(shape, classes), "identity", shape, desk)
    picture = plan.splits.private.shape
    residual = _stand_in(controls.residual_control(picture, classes), "residual", picture, desk)
    inverted = {}
    for attack in plan.attacks:
        stand_in = residual if attack.peels_blocks else identity
        inverted[label(attack)] = desk.attack(stand_in, attack, plan.seeds[0]).leak
        if inverted[label(attack)] < controls.POSITIVE_LEAK:
            desk.flags.append(Flag("control-failed", label(attack)))

    fits_others = 0.0
    for findings in desk.findings.values():
        for finding in findings:
            others = plan.victims.take(torch.arange(len(plan.victims)).roll(1))
            leak = next(metric for metric in plan.metrics if metric.name == "leak")
            value = score(finding.guess, others, plan.splits.public, [leak], None)["leak"].mean().item()
            fits_others = max(fits_others, value)
            if value > controls.NEGATIVE_LEAK:
                desk.flags.append(Flag("negative-control", _where(finding)))
    return {
        "positive": {
            "passed": all(value >= controls.POSITIVE_LEAK for value in inverted.values()),
            "required": controls.POSITIVE_LEAK,
            "attacks": inverted,
            "what": "every attack must invert an encoder that sends the picture itself"
            " (those that peel blocks: a residual network with exactly one inverse)",
        },
        "negative": {
            "passed": fits_others <= controls.NEGATIVE_LEAK,
            "required": controls.NEGATIVE_LEAK,
            "value": fits_others,
            "what": "reconstructions must not fit the pictures of other victims",
        },
        "canary": _canary(desk, shape, classes),
    }


def _canary(desk: _Desk, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    what = "the strongest attack must find a copy of the picture planted beside the defended features"
    if desk.plan.config.evidence != "E2":
        return {"passed": None, "what": f"{what} (not run: evidence E2 was not asked for)"}
    found = {}
    for key, target in desk.targets.items():
        able = [finding for finding in desk.findings[key] if not finding.case.attack.peels_blocks]
        if not able:
            return {"passed": None, "what": f"{what} (not run: only attacks that peel blocks were asked for)"}
        strongest = max(able, key=lambda finding: finding.leak)
        own = tuple(target.record["feature_shape"])
        planted = _stand_in(controls.canary(target.split, own, classes), f"canary of {key}", own, desk)
        value = desk.attack(planted, strongest.case.attack, strongest.case.seed).leak
        found[f"{target.record['defense']} at {target.record['cut']}, seed {target.record['seed']}"] = value
        if value < controls.CANARY_LEAK:
            desk.flags.append(Flag("canary-missed", _where(strongest)))
    passed = all(value >= controls.CANARY_LEAK for value in found.values())
    return {"passed": passed, "required": controls.CANARY_LEAK, "targets": found, "what": what}


def _stand_in(split: Any, name: str, shape: tuple[int, ...], desk: _Desk) -> Target:
    """A control in a target's place, with a key of its own."""
    key = digest({"control": name, "shape": list(shape), "splits": desk.plan.splits.digest()})
    record = {"model": name, "defense": "none", "cut": split.cut, "seed": desk.plan.seeds[0], "accuracy": None}
    return Target(key, split.to(desk.place.device), record)


def _raise_flags(desk: _Desk) -> None:
    white_box = {name for name in ATTACKS if ATTACKS[name].white_box}
    twins = {
        (target.record["cut"], target.record["seed"]): target.record["accuracy"]
        for target in desk.targets.values()
        if target.record["defense"] == "none"
    }
    classes = len(desk.plan.splits.private.classes)
    for key, target in desk.targets.items():
        findings = desk.findings[key]
        against = flags.across([finding.row for finding in findings], white_box)
        twin = twins.get((target.record["cut"], target.record["seed"]))
        lost = flags.collapsed(target.record["accuracy"], twin, classes) and _was_trained(desk.plan)
        for finding in findings:
            own = flags.of_result(
                finding.row,
                random_release=target.record["random_release"],
                averages_noise=finding.case.attack.averages_noise,
            )
            raised = own + against.get(finding.key, []) + (["accuracy-collapsed"] if lost else [])
            finding.row["flags"] = raised
            desk.flags.extend(Flag(name, _where(finding)) for name in raised if name != "accuracy-collapsed")
        if lost:
            desk.flags.append(Flag("accuracy-collapsed", f"{target.record['defense']} at {target.record['cut']}"))
    known = set(desk.plan.splits.public.labels.tolist())
    if not set(desk.plan.victims.labels.tolist()) <= known:
        desk.flags.append(Flag("single-class-means", desk.plan.data_name))


def _was_trained(plan: Plan) -> bool:
    """Whether accuracy means anything: weights were given, or training was asked for."""
    return plan.weights is not None or plan.config.training.epochs > 0


def _where(finding: Finding) -> str:
    row = finding.row
    return f"{row['attack']} on {row['defense']} at {row['cut']}, seed {row['seed']}"


def _budget_is_flat(desk: _Desk) -> bool:
    """Whether twice the steps of each target's strongest attack rebuild no more."""
    flat = True
    for key, target in desk.targets.items():
        strongest = max(desk.findings[key], key=lambda finding: finding.leak)
        steps = getattr(strongest.case.attack, "steps", None)
        if not steps:
            continue
        longer: Attack = dataclasses.replace(strongest.case.attack, steps=2 * steps)  # type: ignore[type-var]
        gained = desk.attack(target, longer, strongest.case.seed).leak - strongest.leak
        if gained > flags.TIE:
            flat = False
            desk.flags.append(Flag("more-budget-helps", _where(strongest)))
    return flat


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


def _evidence_conditions(desk: _Desk, passed: dict[str, Any], flat_budget: bool | None) -> dict[str, Any]:
    plan = desk.plan
    return {
        "E0": [("at least one attack", bool(plan.attacks)), ("floors subtracted", True)],
        "E1": [
            ("the full suite of attacks", plan.suite == "full"),
            (f"three seeds (here {len(plan.seeds)})", len(plan.seeds) >= 3),
            ("positive control passed", passed["positive"]["passed"]),
            ("negative control passed", passed["negative"]["passed"]),
        ],
        "E2": [
            ("an attack made against each defence", all(_adaptive(d, plan.attacks) for d in plan.defenses)),
            ("canary found", bool(passed["canary"]["passed"])),
            ("twice the budget does not help", bool(flat_budget)),
        ],
        "E3": [("an outside attack or a stated bound", False)],
    }


def _document(desk: _Desk, passed: dict[str, Any], flat_budget: bool | None, command: str, started: float) -> Audit:
    plan = desk.plan
    targets = []
    for key, target in desk.targets.items():
        findings = desk.findings[key]
        shown = {name: value for name, value in target.record.items() if name != "plan"}
        strongest = max(findings, key=lambda finding: finding.leak)
        trained = desk.place.store.get("trained", target_plan_key(desk, target))
        targets.append(
            {
                "key": key,
                **shown,
                "notes": trained.record["notes"] if trained else {},
                "strongest": strongest.row["attack"],
                "worst_case": _worst_case(plan, findings),
            }
        )
    raised = [flag.as_dict() for flag in dict.fromkeys(desk.flags)]
    reached = evidence(_evidence_conditions(desk, passed, flat_budget))
    verdict = judge(targets, raised, reached, plan.gate)
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
            "goal": "rebuild the picture a user sent",
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
        "metrics": {
            **{m.name: {"more_leak": m.more_leak, "what": _first_line(m)} for m in plan.metrics},
            **{name: {"more_leak": None, "unavailable": why} for name, why in plan.unavailable.items()},
        },
        "floors": _floors(plan),
        "controls": passed,
        "flags": raised,
        "pictures": shown_pictures,
    }
    return Audit(document, tensors)


def target_plan_key(desk: _Desk, target: Target) -> str:
    defense = next(d for d in desk.plan.defenses if label(d) == target.record["defense"])
    return target_plan(desk.plan, target.record["cut"], defense, target.record["seed"]).trained_key


def _first_line(method: object) -> str:
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


def _pictures(desk: _Desk) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
            for name, images in (("truth", desk.plan.victims.images), ("guess", finding.guess)):
                tensors[f"{name}/{finding.key}"] = (images[index] * 255).round().to(torch.uint8)
    return described, tensors
