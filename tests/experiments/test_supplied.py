"""Networks and pictures of somebody else's: who owns which picture, what is known and what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import leakscope
from leakscope.cli import app, run
from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.execution import Executor
from leakscope.experiments.grid import BenchConfig, grid_jobs
from leakscope.experiments.jobs import portable
from leakscope.experiments.plan import Plan, make_plan, make_plans
from leakscope.experiments.workplace import Workplace
from leakscope.store import Store

FILE = """
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 2))
"""


def _fill(folder: Path, count: int, first: int, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """`count` pictures of every class, each different from all others."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            rng = np.random.default_rng(1000 * number + first + i)
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / name / f"{first + i}.png")
    return folder


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """A network of our own with weights, as settings."""
    (tmp_path / "net.py").write_text(FILE)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 2))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    return {
        "model": f"{tmp_path / 'net.py'}:build", "weights": str(tmp_path / "w.safetensors"), "cuts": ["2"],
        "attacks": ["ridge"], "victims": 2, "metrics": ["leak"],
    }  # fmt: skip


def _plan(**settings: Any) -> Plan:
    return make_plans({"": AuditConfig.checked(settings)})[""]


def test_train_val_and_test_are_no_classes(tmp_path: Path, own: dict[str, Any]) -> None:
    for name, count, first in (("train", 5, 0), ("val", 3, 100), ("test", 4, 200)):
        _fill(tmp_path / "data" / name, count, first)
    whole = DATASETS.build(f"folder:{tmp_path / 'data'}").load(None)
    assert whole.classes == ("cat", "dog")
    assert len(whole) == 24
    splits = _plan(data=f"folder:{tmp_path / 'data'}", **own).scene.splits
    assert [len(part) for part in (splits.private, splits.heldout, splits.public)] == [10, 8, 6]
    train = DATASETS.build(f"folder:{tmp_path / 'data' / 'train'}").load(None)
    assert set(train.fingerprints()) == set(splits.private.fingerprints())


def test_train_and_val_alone_leave_half_to_the_attacker(tmp_path: Path, own: dict[str, Any]) -> None:
    _fill(tmp_path / "data" / "train", 5, 0)
    _fill(tmp_path / "data" / "val", 4, 100)
    splits = _plan(data=f"folder:{tmp_path / 'data'}", **own).scene.splits
    assert [len(part) for part in (splits.private, splits.heldout, splits.public)] == [10, 4, 4]
    assert sorted(splits.heldout.labels.tolist()) == [0, 0, 1, 1]


def test_outputs_and_classes_must_agree(tmp_path: Path, own: dict[str, Any]) -> None:
    folder = _fill(tmp_path / "data", 8, 0, ("a", "b", "c"))
    with pytest.raises(UsageError, match=r"net\.py scores 2 classes, the data have 3 \(a, b, c\).*--private"):
        _plan(data=f"folder:{folder}", **own)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 11))
    with pytest.raises(UsageError, match="scores 11 classes, the data have 10"):
        leakscope.audit(net, "digits", cut="2")


def test_folders_say_who_owns_what(tmp_path: Path, own: dict[str, Any]) -> None:
    parts = {
        name: str(_fill(tmp_path / name, 4, first))
        for name, first in (("private", 0), ("heldout", 100), ("public", 200))
    }
    scene = _plan(**parts, **own).scene
    assert [len(part) for part in vars(scene.splits).values()] == [8, 8, 8]
    assert scene.trained_on == "private"
    del parts["private"]
    scene = _plan(**parts, **own).scene
    assert len(scene.splits.private) == 0
    assert scene.trained_on == "unknown"
    with pytest.raises(UsageError, match="--private"):
        _plan(**parts, **own, training={"epochs": 1})
    _fill(tmp_path / "other", 4, 300, ("cat", "eel"))
    with pytest.raises(UsageError, match="'eel'"):
        _plan(**{**parts, "public": str(tmp_path / "other")}, **own)
    with pytest.raises(UsageError, match="--heldout"):
        _plan(public=parts["public"], **own)


def test_another_process_sees_the_same_pictures(tmp_path: Path, own: dict[str, Any]) -> None:
    """Folders named by option, and `train` and `val` inside one: a worker has nothing but the job's JSON."""
    folders = (("train", 5, 0), ("val", 4, 100), ("test", 4, 200))
    for name, count, first in folders:
        _fill(tmp_path / "data" / name, count, first)
    parts = {name: str(tmp_path / "data" / folder) for name, folder in (("private", "train"), ("heldout", "val"))}
    place = Workplace(Store(tmp_path / "store"), torch.device("cpu"))
    for settings in ({"data": f"folder:{tmp_path / 'data'}"}, parts):
        plan = _plan(**settings, **own)
        sent = json.loads(json.dumps(portable(plan.scene)))
        assert Executor(place)._scene(sent).splits_digest == plan.scene.splits_digest
        base = {**own, "data": "digits"}
        model = base.pop("model")
        jobs = grid_jobs(
            BenchConfig.checked({"data": [settings], "models": [model], "attacks": ["ridge"], "base": base})
        )
        assert {job.key for job in jobs if job.stage == "target"} == {target.key for target in plan.targets}
    assert plan.scene.data_name == plan.scene.short_data_name == "data/train + data/val"
    assert not {"data", "splits"} & set(plan.resolved_config())
    assert {job.title for job in jobs if job.stage == "target"} == {"net.py (none) at 2, seed 0"}


def test_nobody_said_what_given_weights_were_trained_on(own: dict[str, Any], tmp_path: Path) -> None:
    for name, first in (("heldout", 100), ("public", 200)):
        _fill(tmp_path / name, 8, first)
    audit = leakscope.audit(
        own.pop("model"), "digits", heldout=str(tmp_path / "heldout"), public=str(tmp_path / "public"),
        cut=own.pop("cuts"), out=tmp_path / "report", **own,
    )  # fmt: skip
    assert audit.report.data.trained_on == "unknown"
    assert "training data are unknown" in (tmp_path / "report" / "report.html").read_text()
    # Random weights on random pictures: no use, and it is said.
    assert "accuracy-collapsed" in {flag.id for flag in audit.report.flags}


def test_weights_and_one_folder_say_nothing_about_training(own: dict[str, Any], tmp_path: Path) -> None:
    """No part may be called training pictures, none unseen, and what users send may have been seen."""
    folder = _fill(tmp_path / "data", 12, 0)
    leakscope.audit(own.pop("model"), f"folder:{folder}", cut=own.pop("cuts"), out=tmp_path / "report", **own)
    for name in ("report.html", "onepage.html", "summary.md"):
        text = (tmp_path / "report" / name).read_text()
        assert "not trained on" not in text
        assert "training the network" not in text
    page = (tmp_path / "report" / "report.html").read_text()
    assert "its training data are unknown" in page
    assert "the network may have seen them in training" in page


def test_the_command_line_takes_folders_and_normalisation(
    own: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = {"private": 0, "heldout": 100, "public": 200}
    parts = {name: str(_fill(tmp_path / name, 4, first)) for name, first in starts.items()}
    words = ["attack", "--model", own["model"], "--weights", own["weights"], "--cut", "2", "--attack", "ridge"]
    words += [word for name, folder in parts.items() for word in (f"--{name}", folder)]
    words += ["--normalize", "0.5/0.25", "--victims", "2", "--set", "metrics=[leak]", "--json"]
    assert run(app, [*words, "--store", str(tmp_path / "store")]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    same = _plan(**parts, **own, normalize="0.5/0.25")
    assert found["target"]["key"] == same.targets[0].key
    assert found["result"]["victims"] == same.scene.first_victims.digest()


@pytest.mark.parametrize(("text", "expected"), [("0.5/0.25", 2.0), ("imagenet", (1 - 0.485) / 0.229), ("none", 1.0)])
def test_normalisation_can_be_named(text: str, expected: float, own: dict[str, Any], tmp_path: Path) -> None:
    folder = _fill(tmp_path / "data", 8, 0)
    scene = _plan(data=f"folder:{folder}", normalize=text, **own).scene
    layer = scene.architecture.normalization()
    first = 1.0 if layer is None else float(layer(torch.ones(1, 3, 1, 1))[0, 0])
    assert first == pytest.approx(expected)
    plain = _plan(data=f"folder:{folder}", **own).targets[0]
    again = _plan(data=f"folder:{folder}", normalize="", **own).targets[0]
    assert plain.key == again.key
    assert plain.key != scene.spec("2", plain.defense, 0).key


def test_bad_normalisations_are_one_line(own: dict[str, Any], tmp_path: Path) -> None:
    folder = _fill(tmp_path / "data", 8, 0)
    for bad in ("0.5", "a/b", "0.5,0.5/1", "0.5/0"):
        with pytest.raises(UsageError, match="--normalize"):
            _plan(data=f"folder:{folder}", normalize=bad, **own)
    with pytest.raises(UsageError, match="leave --normalize out"):
        make_plan(AuditConfig.checked({"data": "digits", "normalize": "imagenet"}))
