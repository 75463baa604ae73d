"""Who judges class attacks: a network, a face embedding, or both, each with the ceiling it has on real pictures."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.words import Control
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.finished import Audit
from leakscope.experiments.goals.identities import judge_of
from leakscope.experiments.jobs import portable
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
from leakscope.store import Store

NETWORK: dict[str, Any] = {"model": {"kind": "lenet5"}, "training": {"epochs": 40, "learning_rate": 0.004}}


class Tones(nn.Module):
    """An embedding that can be computed by hand: the tones in the middle of a face, from dark to light."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1, 16:48, 16:48].flatten(1).sort(1).values


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    root = tmp_path_factory.mktemp("root")
    (root / "weights").mkdir()
    file = root / "weights" / "tones.pt2"
    batch = torch.export.Dim("batch", min=2, max=4096)
    torch.export.save(torch.export.export(Tones(), (torch.rand(4, 3, 64, 64),), dynamic_shapes=({0: batch},)), file)
    return root, {"file": "tones.pt2", "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def planned(root: Path, evaluator: dict[str, Any]) -> Plan:
    return make_plan(
        AuditConfig.checked(
            {
                "data": "toyfaces:identities=24,images=16,size=32,grey=true",
                "data_root": str(root),
                "splits": {"private": 0.2, "heldout": 0.1, "public": 0.7, "by_identity": True},
                "model": "lenet5",
                "attacks": [{"kind": "gmi", "prior": {"kind": "linear", "components": 12}, "steps": 4, "images": 2}],
                "training": {"epochs": 1},
                "evaluator": evaluator,
                "victims": 4,
            }
        )
    )


@pytest.fixture(scope="module")
def both(embedder: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Audit, Store]:
    root, file = embedder
    plan, store = planned(root, {**NETWORK, "embedder": file}), Store(tmp_path_factory.mktemp("store"))
    return plan, run_audits([plan], Workplace(store, torch.device("cpu")), command="test")[0], store


def _tones(pictures: Tensor) -> np.ndarray[Any, Any]:
    enlarged = nn.functional.interpolate(pictures, size=(64, 64), mode="bilinear", antialias=True).numpy()
    return np.sort(enlarged[:, 0, 16:48, 16:48].reshape(len(enlarged), -1), axis=1)


def test_the_ceiling_of_an_embedding_is_that_of_the_nearest_centroid(both: tuple[Plan, Audit, Store]) -> None:
    plan, audit, _ = both
    splits = plan.scene.splits
    theirs = NearestCentroid().fit(_tones(splits.private.images), splits.private.labels.numpy())
    right = theirs.score(_tones(splits.heldout.images), splits.heldout.labels.numpy())
    report = audit.report.control(Control.POSITIVE)
    assert report.ceilings["embedder"] == pytest.approx(right, abs=1e-6)
    assert report.ceiling == report.ceilings["network"]


def test_results_are_given_by_both(both: tuple[Plan, Audit, Store]) -> None:
    _, audit, _ = both
    metrics = audit.results[0].metrics
    assert {"leak", "leak:embedder", "attack-accuracy", "attack-accuracy:embedder", "delta"} <= metrics.keys()
    ceiling = audit.report.control(Control.POSITIVE).ceilings["embedder"]
    chance = 1 / len(audit.report.targets[0].record.classes)
    found = metrics["attack-accuracy:embedder"].mean
    assert metrics["leak:embedder"].mean == pytest.approx((found - chance) / (ceiling - chance), abs=1e-5)
    # The prior's own distance stands among the floors.
    assert "fid:evaluator" in audit.report.floors["sample of linear:components=12"]


def test_an_embedding_alone_judges_alone(embedder: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    root, file = embedder
    plan, place = planned(root, {"embedder": file}), Workplace(Store(tmp_path), torch.device("cpu"))
    names = {metric.name for metric in plan.scene.metrics}
    assert "delta" in names
    assert "leak:embedder" not in names
    judge, private = judge_of(plan.scene, place), plan.scene.splits.private
    nobody = torch.full((len(private),), -1)
    said = judge.judge(private.images, private.labels, nobody)
    assert float(said.recognised.float().mean()) >= judge.ceiling - 0.2
    again = AuditConfig.checked(portable(plan.scene)["audit"])  # as another process reads it
    assert again.evaluator.judges == ("embedder",)
    assert make_plan(again).scene.goal.judged_by(make_plan(again).scene) == plan.scene.goal.judged_by(plan.scene)


def test_every_choice_of_judges_has_a_key_of_its_own(embedder: tuple[Path, dict[str, str]]) -> None:
    root, file = embedder
    choices = (NETWORK, {"embedder": file}, {**NETWORK, "embedder": file})
    scenes = [planned(root, evaluator).scene for evaluator in choices]
    assert len({scene.goal.judged_by(scene) for scene in scenes}) == 3
    assert "delta" not in {metric.name for metric in scenes[0].metrics}


def test_a_file_that_is_not_there_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"evaluator\.embedder"):
        planned(tmp_path, {"embedder": "absent.pt2"})
