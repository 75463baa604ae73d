"""The audit: targets × suite → scores against floors → controls, flags, evidence → one verdict."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from leakscope.auditing import controls, flags
from leakscope.auditing.flags import Flag
from leakscope.core import progress
from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.spec import digest, label
from leakscope.pipeline.class_controls import class_controls, unconverged
from leakscope.pipeline.desk import Desk
from leakscope.pipeline.document import Audit, finished
from leakscope.pipeline.execute import Target, Workplace, realise, score, target_plan
from leakscope.pipeline.outside import outside_findings
from leakscope.pipeline.plan import Plan


def run_audit(plan: Plan, place: Workplace, *, command: str) -> Audit:
    """Run a plan to its verdict. Whatever the store already holds is not computed again."""
    started = time.monotonic()
    desk = Desk(plan, place)
    if plan.rebuilds_classes:
        assert desk.judge is not None  # trained first: nothing is attacked that nobody can judge
    with progress.stage("audit", sum(len(plan.suited[cut, defense]) for cut, defense, _ in plan.grid)) as bar:
        for cut, defense, seed in plan.grid:
            target = realise(plan, target_plan(plan, cut, defense, seed), place)
            desk.targets[target.key] = target
            for attack in plan.suited[cut, defense]:
                finding = desk.attack(target, attack, seed)
                desk.findings[target.key].append(finding)
                bar.advance(1, leak=finding.leak)
            desk.findings[target.key] += outside_findings(desk, target)
    passed = _controls(desk)
    _raise_flags(desk)
    flat_budget = _budget_is_flat(desk) if plan.config.evidence == "E2" else None
    return finished(desk, passed, flat_budget, command, started)


def _controls(desk: Desk) -> dict[str, Any]:
    """Positive control for every attack, negative control for every result, canary when E2 is wanted."""
    plan = desk.plan
    if plan.rebuilds_classes:
        return class_controls(desk)
    shape = tuple(next(iter(desk.targets.values())).record["feature_shape"])
    classes = len(plan.splits.private.classes)
    inverted = {label(attack): inverts_control(desk, attack, shape, classes) for attack in plan.attacks}

    fits_others = 0.0
    for findings in desk.findings.values():
        for finding in findings:
            others = plan.victims.take(torch.arange(len(plan.victims)).roll(1))
            leak = next(metric for metric in plan.metrics if metric.name == "leak")
            value = score(finding.guess, others, plan.splits.public, [leak], None)["leak"].mean().item()
            fits_others = max(fits_others, value)
            if value > controls.NEGATIVE_LEAK:
                desk.flags.append(Flag("negative-control", finding.where))
    return {
        "positive": {
            "passed": all(value >= controls.POSITIVE_LEAK for value in inverted.values()),
            "required": controls.POSITIVE_LEAK,
            "attacks": inverted,
            "what": "every attack must invert an encoder that sends the picture itself"
            " (one that needs a structure: the easiest network that has it)",
        },
        "negative": {
            "passed": fits_others <= controls.NEGATIVE_LEAK,
            "required": controls.NEGATIVE_LEAK,
            "value": fits_others,
            "what": "reconstructions must not fit the pictures of other victims",
        },
        "canary": _canary(desk, shape, classes),
    }


def inverts_control(desk: Desk, attack: Attack, shape: tuple[int, ...], classes: int) -> float:
    """Leak of an attack on an encoder that hides nothing; raises a flag when it is too low.

    An attack that fails on the audit's own pictures gets easy ones: succeeding there it works, but was
    given too little to learn these; failing there too, it is broken.
    """
    picture, seed = desk.plan.splits.private.shape, desk.plan.seeds[0]
    name = attack.control
    size = shape if name == "identity" else picture
    split = controls.CONTROLS[name](size, classes)
    leak = desk.attack(_stand_in(split, name, size, desk), attack, seed).leak
    if leak < controls.POSITIVE_LEAK:
        public = controls.easy_pictures(min(len(desk.plan.splits.public), 1000), picture, "public")
        victims = controls.easy_pictures(len(desk.plan.victims), picture, "victims")
        easy = _stand_in(split, f"{name}, easy pictures", size, desk)
        works = desk.attack(easy, attack, seed, public=public, victims=victims).leak >= controls.POSITIVE_LEAK
        desk.flags.append(Flag("weak-on-control" if works else "control-failed", label(attack)))
    return leak


def _canary(desk: Desk, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    what = "the strongest attack must find a copy of the picture planted beside the defended features"
    if desk.plan.config.evidence != "E2":
        return {"passed": None, "what": f"{what} (not run: evidence E2 was not asked for)"}
    found = {}
    for key, target in desk.targets.items():
        able = [finding for finding in desk.findings[key] if finding.case.attack.control == "identity"]
        if not able:
            return {"passed": None, "what": f"{what} (not run: no attack was asked for that reads any network)"}
        strongest = max(able, key=lambda finding: finding.leak)
        own = tuple(target.record["feature_shape"])
        planted = _stand_in(controls.canary(target.split, own, classes), f"canary of {key}", own, desk)
        value = desk.attack(planted, strongest.case.attack, strongest.case.seed).leak
        found[f"{target.record['defense']} at {target.record['cut']}, seed {target.record['seed']}"] = value
        if value < controls.CANARY_LEAK:
            desk.flags.append(Flag("canary-missed", strongest.where))
    passed = all(value >= controls.CANARY_LEAK for value in found.values())
    return {"passed": passed, "required": controls.CANARY_LEAK, "targets": found, "what": what}


def _stand_in(split: Any, name: str, shape: tuple[int, ...], desk: Desk) -> Target:
    """A control in a target's place, with a key of its own."""
    key = digest({"control": name, "shape": list(shape), "splits": desk.plan.splits.digest()})
    record = {"model": name, "defense": "none", "cut": split.cut, "seed": desk.plan.seeds[0], "accuracy": None}
    return Target(key, split.to(desk.place.device), record)


def _raise_flags(desk: Desk) -> None:
    plan = desk.plan
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
            if plan.rebuilds_classes and unconverged(finding):
                own.append("target-unconvinced")
            raised = own + against.get(finding.key, []) + (["accuracy-collapsed"] if lost else [])
            finding.row["flags"] = raised
            desk.flags.extend(Flag(name, finding.where) for name in raised if name != "accuracy-collapsed")
        if lost:
            desk.flags.append(Flag("accuracy-collapsed", f"{target.record['defense']} at {target.record['cut']}"))
    if plan.rebuilds_classes:
        return
    known = set(desk.plan.splits.public.labels.tolist())
    if not set(desk.plan.victims.labels.tolist()) <= known:
        desk.flags.append(Flag("single-class-means", desk.plan.data_name))


def _was_trained(plan: Plan) -> bool:
    """Whether accuracy means anything: weights were given, or training was asked for."""
    return plan.weights is not None or plan.config.training.epochs > 0


def _budget_is_flat(desk: Desk) -> bool:
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
            desk.flags.append(Flag("more-budget-helps", strongest.where))
    return flat
