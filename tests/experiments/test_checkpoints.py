"""Checkpoints of one run as targets, and one undefended start for all defences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakscope.core.defense import build_defense
from leakscope.core.errors import UsageError
from leakscope.core.spec import describe
from leakscope.experiments import stages, training
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.stages import train_target
from leakscope.experiments.training import Training
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
from leakscope.store import Store

SMALL: dict[str, Any] = {
    "data": "digits",
    "splits": {"private": 300, "heldout": 100, "public": 200},
    "model": "lenet5",
    "resize": 12,
    "cuts": ["block1"],
    "victims": 8,
    "attacks": ["ridge"],
    "training": {"epochs": 3, "schedule": "constant", "warmup": 0, "keep": [1, 2]},
}


def planned(**settings: Any) -> Plan:
    return make_plan(AuditConfig.checked({**SMALL, **settings}))


def work(tmp_path: Path) -> Workplace:
    return Workplace(Store(tmp_path), torch.device("cpu"))


def weights(plan: Plan, spec: TargetSpec, place: Workplace) -> dict[str, Tensor]:
    return train_target(plan.scene, spec, place).split.state_dict()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The defences that were trained, in order."""
    trained: list[str] = []
    real = training.train

    def counted(split: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append(split.defense.kind_name)
        return real(split, *args, **kwargs)

    monkeypatch.setattr(stages, "train", counted)
    return trained


def test_a_checkpoint_is_what_a_shorter_run_would_have_ended_with(tmp_path: Path, runs: list[str]) -> None:
    """With a constant rate the first two epochs of three are a run of two."""
    plan, place = planned(stops=[1, 2, None]), work(tmp_path)
    first, second, last = (weights(plan, spec, place) for spec in plan.targets)
    assert runs == ["none"]  # one run for three targets
    for epochs, found in ((1, first), (2, second), (3, last)):
        alone = planned(training={"epochs": epochs, "schedule": "constant", "warmup": 0})
        assert same(weights(alone, alone.targets[0], place), found)


def test_keys_nest(tmp_path: Path) -> None:
    plan = planned(stops=[1, None])
    early, last = plan.targets
    assert early.trained_key == last.trained_key == last.weights_key
    assert len({early.key, last.key}) == len({early.weights_key, last.weights_key}) == 2
    assert early.setting == last.setting
    assert TargetSpec.from_plain(early.plain()) == early
    assert "stop" not in last.plain()
    plain = Training(epochs=3)
    assert not {"keep", "start"} & describe(plain).keys()  # keys from before they were there still hold


def test_an_audit_has_a_row_for_every_stop(tmp_path: Path) -> None:
    (audit,) = run_audits([planned(stops=[1, None])], work(tmp_path), command="test")
    records = [target.record for target in audit.report.targets]
    assert [record.stop for record in records] == [1, None]
    assert records[0].name.endswith("after epoch 1")
    assert len(audit.report.groups) == 2
    assert [result.command is not None and "stops=[1]" in result.command for result in audit.results] == [True, False]


def test_one_start_serves_every_defence(tmp_path: Path, runs: list[str]) -> None:
    settings: dict[str, Any] = {"epochs": 1, "start": {"epochs": 2}}
    plan, place = planned(training=settings, defenses=["none", "gaussian", "nopeek"]), work(tmp_path)
    for spec in plan.targets:
        train_target(plan.scene, spec, place)
    assert runs == ["none", "none", "gaussian", "nopeek"]
    # It is the undefended target that a run of the start alone makes, and kept as that.
    alone = planned(training={"epochs": 2})
    begun = weights(alone, alone.targets[0], place)
    assert runs == ["none", "none", "gaussian", "nopeek"]
    # Without a step of its own a target has the start's weights: a rate of next to nothing changes next to nothing.
    still = planned(training={**settings, "optimizer": "sgd", "learning_rate": 1e-12, "weight_decay": 0})
    moved = weights(still, still.targets[0], place)
    assert max(float((moved[name] - begun[name]).abs().max()) for name in begun) < 1e-6


def test_the_key_depends_on_the_start() -> None:
    keys = {
        planned(training={"epochs": 1, **start}).targets[0].trained_key
        for start in ({}, {"start": {"epochs": 2}}, {"start": {"epochs": 3}})
    }
    assert len(keys) == 3
    spec = planned(training={"epochs": 1, "start": {"epochs": 2}}, defenses=["gaussian"]).targets[0]
    start = spec.start
    assert start is not None
    assert start.undefended
    assert start.trained_key == replace(spec, defense=build_defense("nopeek")).start.trained_key  # type: ignore[union-attr]
    assert start.trained_key != replace(spec, seed=1).start.trained_key  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"stops": [5]}, "stops names epochs of training.keep"),
        ({"stops": [1, 1]}, "each once"),
        ({"training": {"epochs": 3, "keep": [3]}}, "keep names epochs"),
        ({"training": {"epochs": 3, "keep": [2, 1]}}, "keep names epochs"),
        ({"training": {"epochs": 3, "keep": [2], "patience": 1}}, "exclude each other"),
        ({"training": {"epochs": 3, "start": {"epochs": 1, "keep": []}}, "defenses": ["dp-sgd"]}, "before it acts"),
        ({"training": {"epochs": 0, "start": {"epochs": 1}}}, "start is a plain training"),
        ({"training": {"epochs": 1, "start": {"epochs": 2, "start": {"epochs": 1}}}}, "start is a plain training"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        planned(**settings)
