"""The one place that runs a job, in any process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from leakscope.core.attack import Attack
from leakscope.core.data import ImageSet
from leakscope.core.results import to_json
from leakscope.core.spec import Plain, digest
from leakscope.experiments.blocks import keep_blocks
from leakscope.experiments.bounds import keep_bound
from leakscope.experiments.config import AuditConfig, shared_pictures
from leakscope.experiments.experiment import Experiment, TargetSpec
from leakscope.experiments.floors import floors_key
from leakscope.experiments.job import Job
from leakscope.experiments.reading import read_result
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Case, Target, prepare, run_case, train_target
from leakscope.experiments.workplace import Workplace


class Executor:
    """Runs jobs one after another; pictures, scenes and targets that consecutive jobs share are loaded once."""

    def __init__(self, place: Workplace, scenes: dict[str, Scene] | None = None) -> None:
        self.place = place
        self._given = scenes or {}  # by the digest of their configuration: scenes that are already in memory
        self._scenes: dict[str, Scene] = {}
        self._pictures: dict[str, ImageSet] = {}
        self._targets: dict[str, Target] = {}

    def run(self, job: Job) -> None:
        """Do a job; afterwards the store holds what it makes."""
        if job.done(self.place.store):
            return
        _STAGES[job.stage](self, self._scene(job.config), Experiment.from_plain(job.experiment), job)
        if not job.done(self.place.store):
            raise LookupError("pictures or code changed since the job was planned; give the command again")

    def _scene(self, config: Plain) -> Scene:
        identity = digest(config)
        if identity in self._given:
            return self._given[identity]
        if identity not in self._scenes:
            if Path(config["folder"]).is_dir():
                os.chdir(config["folder"])
            audit = AuditConfig.checked(config["audit"])
            pictures = shared_pictures(audit, self._pictures, config["folder"])
            _forget(self._scenes, 4)
            self._scenes[identity] = Scene.load(audit, data=pictures)
        return self._scenes[identity]

    def target(self, scene: Scene, spec: TargetSpec) -> Target:
        if spec.key not in self._targets:
            _forget(self._targets, 2)
            self._targets[spec.key] = train_target(scene, spec, self.place)
        return self._targets[spec.key]

    def _make_target(self, scene: Scene, work: Experiment, job: Job) -> None:
        self.target(scene, work.target)

    def _make_judge(self, scene: Scene, work: Experiment, job: Job) -> None:
        scene.goal.prepare_judge(scene, self.place)
        self.place.store.put("judge", job.key, {})

    def _prepare(self, scene: Scene, work: Experiment, job: Job) -> None:
        case = self._case(scene, work)
        prepare(case, case.view(self.place), self.place)

    def _attack(self, scene: Scene, work: Experiment, job: Job) -> None:
        run_case(self._case(scene, work), self.place)

    def _control(self, scene: Scene, work: Experiment, job: Job) -> None:
        found = scene.goal.control(scene, work.target, _attack_of(work), self.place)
        self.place.store.put("control", job.key, {"summary": {"controls": [to_json(control) for control in found]}})

    def _check(self, scene: Scene, work: Experiment, job: Job) -> None:
        result = read_result(self.place.store, work.results[0])
        found = scene.goal.checks(scene, work.target, _attack_of(work), result, self.place)
        self.place.store.put("control", job.key, {"summary": {"controls": [to_json(control) for control in found]}})

    def _floors(self, scene: Scene, work: Experiment, job: Job) -> None:
        found = scene.goal.floors(scene, work.rivals, self.place)
        plain = {name: {metric: to_json(value) for metric, value in own.items()} for name, own in found.items()}
        self.place.store.put("floors", floors_key(scene, work.rivals), {"floors": plain})

    def _facts(self, scene: Scene, work: Experiment, job: Job) -> None:
        target = self.target(scene, work.target)
        keep_bound(scene, work.target, target, self.place)
        results = [read_result(self.place.store, key) for key in work.results]
        cases = [(Case.of(scene, target, attack), own) for attack, own in zip(work.rivals, results, strict=True)]
        keep_blocks(target, cases, self.place)

    def _case(self, scene: Scene, work: Experiment) -> Case:
        return Case.of(scene, self.target(scene, work.target), _attack_of(work))


def _attack_of(work: Experiment) -> Attack:
    assert work.attack is not None
    return work.attack


_STAGES: dict[str, Callable[[Executor, Scene, Experiment, Job], None]] = {
    "judge": Executor._make_judge,
    "target": Executor._make_target,
    "prepare": Executor._prepare,
    "attack": Executor._attack,
    "control": Executor._control,
    "check": Executor._check,
    "floors": Executor._floors,
    "facts": Executor._facts,
}


def _forget(cache: dict[str, Scene] | dict[str, Target], keep: int) -> None:
    while len(cache) >= keep:
        del cache[next(iter(cache))]
