"""From a plan to its jobs, and the one place that runs a job, in whatever process it lands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from leakscope.core.attack import Attack
from leakscope.core.data import ImageSet
from leakscope.core.experiment import AttackPlan, result_key
from leakscope.core.spec import Plain, describe, digest, label
from leakscope.models.resolve import resolve
from leakscope.pipeline.audit import inverts_control
from leakscope.pipeline.class_controls import class_control
from leakscope.pipeline.config import AuditConfig, load_data
from leakscope.pipeline.desk import Desk
from leakscope.pipeline.execute import Case, Target, Workplace, realise, run_prepare, target_plan
from leakscope.pipeline.job import Job
from leakscope.pipeline.plan import Plan, make_plan
from leakscope.store import Store


def plan_jobs(plan: Plan, *, threat: str = "all", controls: bool = True) -> list[Job]:
    """Every job of a plan, each after those it needs; `threat` is what people call its threat model."""
    config = _portable(plan.config)
    first = target_plan(plan, *plan.grid[0])
    victims = plan.victims.digest()
    common = {"data": plan.data_name, "model": plan.model_name, "threat": threat}
    jobs: list[Job] = []
    judges: tuple[str, ...] = ()
    if plan.rebuilds_classes:
        jobs.append(_judge_job(plan, config, {**common, "seed": 0}, first.splits))
        judges = (jobs[0].id,)
    for cut, defense, seed in plan.grid:
        chosen = replace(first, cut=cut, defense=defense, seed=seed)
        choice = {"cut": cut, "defense": describe(defense), "seed": seed}
        row = {**common, "cut": cut, "defense": label(defense), "seed": seed}
        trained = (("trained", chosen.trained_key),) if plan.config.training.epochs else ()
        effort = max(plan.config.training.epochs, 1) * len(plan.splits.private)
        target = Job("target", chosen.key, (*trained, ("target", chosen.key)), (), config, choice, row, effort)
        jobs.append(target)
        for attack in plan.suited[cut, defense]:
            attacked = AttackPlan(chosen.key, plan.threat, attack, seed)
            own = {**choice, "attack": describe(attack)}
            named = {**row, "attack": label(attack)}
            needs: tuple[str, ...] = (target.id,)
            if type(attack).prepare is not Attack.prepare:
                key = attacked.prepared_key
                made = (("prepared", key),)
                jobs.append(Job("prepare", key, made, needs, config, own, named, len(plan.splits.public)))
                needs = (*needs, jobs[-1].id)
            makes = (("attack", attacked.key(victims)), _scores_of(plan, attacked.key(victims)))
            jobs.append(Job("attack", makes[1][1], makes, needs + judges, config, own, named, len(plan.victims)))
    if controls:
        jobs += _control_jobs(plan, next(job for job in jobs if job.stage == "target"), judges, config, victims)
    return jobs


def _scores_of(plan: Plan, attack_key: str) -> tuple[str, str]:
    """Where the scores of an attack are. What a judge says has a key of the judge's making, so a note leads there."""
    if plan.rebuilds_classes:
        return "scored", digest({"attack": attack_key, "evaluator": plan.config.evaluator.model_dump(mode="json")})
    return "result", result_key(attack_key, list(plan.metrics))


def _judge_job(plan: Plan, config: Plain, row: Plain, splits: str) -> Job:
    evaluator = plan.config.evaluator
    key = digest({"splits": splits, "evaluator": evaluator.model_dump(mode="json")})
    named = {**row, "model": label(resolve(evaluator.model)), "defense": "judge", "cut": "none", "attack": None}
    effort = evaluator.training.epochs * len(plan.splits.private)
    return Job("judge", key, (("judge", key),), (), config, {}, named, effort)


def _control_jobs(plan: Plan, target: Job, judges: tuple[str, ...], config: Plain, victims: str) -> list[Job]:
    """The controls of every attack; the first target tells the shape of features."""
    jobs = []
    for attack in plan.attacks:
        identity = {
            "control": describe(AttackPlan(target.key, plan.threat, attack, plan.seeds[0])),
            "victims": victims,
            "judged": list(judges) or [describe(metric) for metric in plan.metrics],
        }
        key = digest(identity)
        choice = {**target.choice, "attack": describe(attack)}
        row = {**target.row, "defense": "control", "attack": label(attack)}
        needs, made = (target.id, *judges), (("control", key),)
        jobs.append(Job("control", key, made, needs, config, choice, row, len(plan.victims)))
    return jobs


def _portable(config: AuditConfig) -> Plain:
    """A configuration that means the same in another process: paths absolute, the working folder named."""
    left_out = {"scales", "variants", "study", "results", "gate"}
    plain: Plain = config.model_dump(mode="json", exclude=left_out)
    for name in ("data_root", "weights", "split_index"):
        if plain[name] is not None:
            plain[name] = str(Path(plain[name]).absolute())
    return {"folder": str(Path.cwd()), "audit": plain}


class Workshop:
    """Runs jobs one after another; pictures and plans that several share are made once."""

    def __init__(self, store: Path | str, device: torch.device) -> None:
        self.place = Workplace(Store(store), device)
        self._desks: dict[str, Desk] = {}
        self._pictures: dict[str, ImageSet] = {}

    def run(self, job: Job) -> None:
        """Do a job; afterwards the store holds what it makes."""
        if job.done(self.place.store):
            return
        _STAGES[job.stage](self._desk(job.config), job)
        if not job.done(self.place.store):
            raise LookupError("pictures or code changed since the job was planned; give the command again")

    def _desk(self, config: Plain) -> Desk:
        """The desk of a job's plan; the last few are kept, since neighbours in the queue share them."""
        identity = digest(config)
        if identity not in self._desks:
            if Path(config["folder"]).is_dir():
                os.chdir(config["folder"])
            audit = AuditConfig.checked(config["audit"])
            source = digest([config["folder"], audit.data, audit.resize, str(audit.data_root)])
            if source not in self._pictures:
                _forget(self._pictures, 2)
                self._pictures[source] = load_data(audit, audit.data_root)
            _forget(self._desks, 4)
            self._desks[identity] = Desk(make_plan(audit, data=self._pictures[source]), self.place)
        return self._desks[identity]


def _target(desk: Desk, job: Job) -> Target:
    defense = _named(desk.plan.defenses, job.choice["defense"])
    return realise(desk.plan, target_plan(desk.plan, job.choice["cut"], defense, job.choice["seed"]), desk.place)


def _judge(desk: Desk, job: Job) -> None:
    assert desk.judge is not None
    desk.place.store.put("judge", job.key, {"evaluator": desk.judge.key})


def _prepare(desk: Desk, job: Job) -> None:
    plan = desk.plan
    attack = _named(plan.attacks, job.choice["attack"])
    case = Case(_target(desk, job), attack, plan.threat, plan.splits.public, plan.victims, job.choice["seed"])
    run_prepare(case, case.view(desk.place), desk.place)


def _attack(desk: Desk, job: Job) -> None:
    attack = _named(desk.plan.attacks, job.choice["attack"])
    finding = desk.attack(_target(desk, job), attack, job.choice["seed"])
    if desk.plan.rebuilds_classes:
        desk.place.store.put("scored", job.key, {"result": finding.key})


def _control(desk: Desk, job: Job) -> None:
    attack = _named(desk.plan.attacks, job.choice["attack"])
    own = Desk(desk.plan, desk.place)  # the flags of this control only
    if desk.plan.rebuilds_classes:
        found: Plain = class_control(own, attack)
    else:
        shape = tuple(_target(desk, job).record["feature_shape"])
        found = {"leak": inverts_control(own, attack, shape, len(desk.plan.splits.private.classes))}
    summary = {"attack": label(attack), **found, "flags": [flag.id for flag in own.flags]}
    desk.place.store.put("control", job.key, {"summary": summary})


_STAGES: dict[str, Callable[[Desk, Job], object]] = {
    "target": _target, "judge": _judge, "prepare": _prepare, "attack": _attack, "control": _control,
}  # fmt: skip


def _forget(cache: dict[str, Any], keep: int) -> None:
    while len(cache) >= keep:
        del cache[next(iter(cache))]


def _named(methods: Iterable[Any], description: Plain) -> Any:
    """The method with this description; gone only when the code changed between planning and running."""
    for method in methods:
        if describe(method) == description:
            return method
    raise LookupError(f"this Leakscope plans no {description.get('kind')} as it was asked for; plan the grid again")
