"""From a plan to its jobs: the same stages whoever asks, audit, attack, bench or reproduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakscope.core.attack import Attack
from leakscope.core.results import AttackResult
from leakscope.core.spec import Plain, digest, label
from leakscope.experiments.blocks import blocks_key
from leakscope.experiments.experiment import AttackSpec, Experiment, TargetSpec, control_key, score_key
from leakscope.experiments.floors import floors_key
from leakscope.experiments.job import Job, Named, Stage
from leakscope.experiments.plan import Plan
from leakscope.experiments.scene import Scene


def plan_jobs(plan: Plan, *, threat: str = "all", controls: bool = True, facts: bool = False) -> list[Job]:
    """Every job of a plan, each after those it needs; `threat` is what people call its threat model.

    `facts` adds what a report shows beside the scores: floors, bounds and tables of blocks.
    """
    made = _Jobs(plan, portable(plan.scene), threat)
    made.judge()
    for target in plan.targets:
        made.target(target)
        for attack in plan.attacks_on(target):
            made.attack(target, attack)
        if facts:
            made.facts(target)
    if controls:
        for attack in plan.attacks:
            made.control(plan.targets[0], attack)
    if facts:
        made.floors(plan.targets[0])
    return made.jobs


def check_jobs(plan: Plan, strongest: Mapping[str, tuple[Attack, AttackResult]]) -> list[Job]:
    """Evidence E2: what the strongest attack on each target must pass; `strongest` is by target key."""
    made = _Jobs(plan, portable(plan.scene), "all")
    for target in plan.targets:
        made.check(target, *strongest[target.key])
    return made.jobs


def check_key(result: AttackResult) -> str:
    return digest({"check": result.key})


class _Jobs:
    """The jobs of one plan, as they are added."""

    def __init__(self, plan: Plan, config: Plain, threat: str) -> None:
        self.plan, self.scene, self.config, self.threat = plan, plan.scene, config, threat
        self.jobs: list[Job] = []
        self.judges: tuple[str, ...] = ()

    def named(self, target: TargetSpec, attack: Attack | None = None, **changed: Any) -> Named:
        name = Named(
            self.scene.short_data_name, label(self.scene.architecture), self.threat, target.cut,
            label(target.defense), target.seed, None if attack is None else label(attack),
            None if attack is None else attack.kind_name, self.scene.network_name,
        )  # fmt: skip
        return replace(name, **changed)

    def add(
        self, stage: Stage, makes: list[tuple[str, str]], needs: tuple[str, ...], experiment: Experiment, work: float,
        **changed: Any,
    ) -> str:  # fmt: skip
        named = self.named(experiment.target, experiment.attack, **changed)
        job = Job(stage, makes[-1][1], tuple(makes), needs, self.config, experiment.plain(), named, work)
        self.jobs.append(job)
        return job.id

    def judge(self) -> None:
        scene = self.scene
        key = scene.goal.judged_by(scene)
        if key is not None:
            experiment = Experiment(self.plan.targets[0])
            job = self.add("judge", [("judge", key)], (), experiment, scene.goal.judge_work(scene), defense="judge")
            self.judges = (job,)

    def target(self, target: TargetSpec) -> None:
        epochs = self.scene.config.training.epochs
        made = [("trained", target.trained_key)] if epochs else []
        work = max(epochs, 1) * max(len(self.scene.splits.private), 1)
        self.add("target", [*made, ("target", target.key)], (), Experiment(target), work)

    def attack(self, target: TargetSpec, attack: Attack) -> None:
        scene = self.scene
        spec = AttackSpec(target.key, scene.threat, attack, target.seed)
        experiment = Experiment(target, attack)
        needs: tuple[str, ...] = (f"target-{target.key}",)
        if attack.keep_prepared and type(attack).prepare is not Attack.prepare:
            made = [("prepared", spec.prepared_key)]
            needs += (self.add("prepare", made, needs, experiment, len(scene.splits.public)),)
        key = spec.key(scene.victims(target.seed).digest())
        made = [("attack", key), ("result", score_key(key, scene.metrics, scene.goal.judged_by(scene)))]
        self.add("attack", made, needs + self.judges, experiment, len(scene.first_victims))

    def result_keys(self, target: TargetSpec) -> tuple[str, ...]:
        wanted = f"target-{target.key}"
        return tuple(job.key for job in self.jobs if job.stage == "attack" and wanted in job.needs)

    def control(self, target: TargetSpec, attack: Attack) -> None:
        scene = self.scene
        key = control_key(
            attack, scene.threat, target.splits, target.model, len(scene.first_victims), scene.goal.judged_by(scene)
        )
        needs = (f"target-{target.key}", *self.judges)
        self.add(
            "control",
            [("control", key)],
            needs,
            Experiment(target, attack),
            len(scene.first_victims),
            defense="control",
        )

    def check(self, target: TargetSpec, attack: Attack, result: AttackResult) -> None:
        experiment = Experiment(target, attack, (result.key,))
        self.add("check", [("control", check_key(result))], (), experiment, len(self.scene.first_victims))

    def facts(self, target: TargetSpec) -> None:
        results = self.result_keys(target)
        needs = tuple(f"attack-{key}" for key in results)
        makes = [("bound", target.key), ("blocks", blocks_key(results))]
        experiment = Experiment(target, results=results, rivals=tuple(self.plan.attacks_on(target)))
        self.add("facts", makes, needs, experiment, len(self.scene.first_victims))

    def floors(self, target: TargetSpec) -> None:
        key = floors_key(self.scene, self.plan.attacks)
        experiment = Experiment(target, rivals=tuple(self.plan.attacks))
        self.add("floors", [("floors", key)], self.judges, experiment, len(self.scene.first_victims))


def portable(scene: Scene) -> Plain:
    """A configuration that means the same in another process: paths absolute, the working folder named."""
    left_out = {"scales", "variants", "study", "results", "gate"}
    # Only what was said: a default that is written out would count as asked for (`splits`, `threat.access`).
    plain: Plain = scene.config.model_dump(mode="json", exclude=left_out, exclude_unset=True)
    plain["goal"] = scene.goal.kind_name
    for name in ("data_root", "weights", "split_index"):
        if plain.get(name) is not None:
            plain[name] = str(Path(plain[name]).absolute())
    return {"folder": str(Path.cwd()), "audit": plain}
