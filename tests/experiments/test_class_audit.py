"""A class audit from configuration to verdict, on drawn faces with the linear prior."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core.errors import UsageError
from leakscope.core.spec import label
from leakscope.core.words import Control
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.execution import Executor
from leakscope.experiments.finished import Audit
from leakscope.experiments.folder import write_folder
from leakscope.experiments.goals.identities import templates
from leakscope.experiments.job import Job, shared
from leakscope.experiments.jobs import plan_jobs
from leakscope.experiments.plan import make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
from leakscope.store import Store

SETTINGS: dict[str, Any] = {
    "data": "toyfaces:identities=24,images=16,size=32,grey=true",
    "splits": {"private": 0.2, "heldout": 0.1, "public": 0.7, "by_identity": True},
    "model": "convnet",
    "attacks": [{"kind": "gmi", "prior": {"kind": "linear", "components": 24}, "steps": 40, "images": 2}],
    "training": {"epochs": 4},
    "evaluator": {"model": {"kind": "lenet5"}, "training": {"epochs": 40, "learning_rate": 0.004}},
    "victims": 6,
}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    torch.set_num_threads(1)
    plan = make_plan(AuditConfig.checked(SETTINGS))
    place = Workplace(Store(tmp_path_factory.mktemp("store")), torch.device("cpu"))
    return run_audits([plan], place, command="test")[0]


def test_every_measure_is_there_for_every_identity(audit: Audit) -> None:
    metrics = audit.results[0].metrics
    assert metrics["leak"].n == 6
    assert metrics["fid:evaluator"].n == 1
    accepted, recognised = metrics["target-accuracy"].mean, metrics["attack-accuracy"].mean
    assert metrics["false-positive"].mean >= accepted - recognised - 1e-6


def test_controls_compare_with_those_who_know_nothing(audit: Audit) -> None:
    negative = audit.report.control(Control.NEGATIVE)
    assert {control.where for control in negative.results} == {
        "shuffled identities", "random weights", "permuted labels",
    }  # fmt: skip
    floors = audit.report.floors
    assert set(floors) == {"mean", "random-public", "nearest-public", "sample of linear:components=24"}
    assert floors["sample of linear:components=24"]["attack-accuracy"].mean < 0.5
    ceiling = audit.report.control(Control.POSITIVE).ceiling
    assert ceiling is not None
    assert 0 < ceiling <= 1


def test_jobs_leave_nothing_for_the_audit_to_compute(audit: Audit, tmp_path: Path) -> None:
    """Any process may do them, controls included; the audit that follows gives what it gives alone."""
    place = Workplace(Store(tmp_path), torch.device("cpu"))
    executor = Executor(place)
    plan = make_plan(AuditConfig.checked(SETTINGS))
    jobs = shared(plan_jobs(plan, facts=True))
    assert [job.named.attack for job in jobs if job.stage == "control"] == [label(attack) for attack in plan.attacks]
    for job in jobs:
        executor.run(Job.from_json(json.loads(json.dumps(job.as_json()))))
    kinds = ("attack", "result", "permuted", "evaluator", "target", "prior", "control", "floors")
    before = {kind: place.store.keys(kind) for kind in kinds}
    (again,) = run_audits([plan], place, command="test")
    assert {kind: place.store.keys(kind) for kind in before} == before
    assert again.report.controls == audit.report.controls
    assert [result.metrics for result in again.results] == [result.metrics for result in audit.results]


def test_the_target_that_hides_nothing_scores_squared_distances() -> None:
    """Known to the last constant: attacks on logits see what a softmax does not."""
    private = make_plan(AuditConfig.checked(SETTINGS)).scene.splits.private
    means = torch.stack([private.images[private.labels == k].mean(0) for k in range(len(private.classes))])
    scores = templates(private).run(private.images[:9], None).scores
    slow = [[-float((x - m).square().sum()) for m in means] for x in private.images[:9]]
    torch.testing.assert_close(scores, torch.tensor(slow), atol=1e-3, rtol=1e-4)


def test_the_verdict_speaks_of_identities(audit: Audit, tmp_path: Path) -> None:
    text = audit.report.sentence
    assert "identit" in text or "control failed" in text
    assert audit.report.goal_what.endswith("look like")
    write_folder(audit, tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"splits": {"private": 0.5, "heldout": 0.1, "public": 0.4}}, "by_identity"),
        ({"attacks": ["gmi:prior=linear", "ridge"]}, "one by one"),
        ({"evaluator": {"model": "nonsense"}}, "nonsense"),
        ({"evaluator": {"network": "lenet5"}}, "network"),
    ],
)
def test_what_cannot_mean_anything_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        make_plan(AuditConfig.checked({**SETTINGS, **change}))
