"""Which blocks leak: the table of a target, the flags that name blocks, and what a bad network is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from leakscope.cli import app, run
from leakscope.pipeline.audit import run_audit
from leakscope.pipeline.config import AuditConfig
from leakscope.pipeline.document import Audit
from leakscope.pipeline.execute import Workplace
from leakscope.pipeline.folder import write_folder
from leakscope.pipeline.plan import make_plan
from leakscope.store import Store

SETTINGS = {
    "data": "digits",
    "splits": {"private": 60, "heldout": 30, "public": 60},
    "model": {"kind": "preact-resnet", "width": 4, "growth": [2, 1, 1], "strided": False, "batch_norm": True},
    "cuts": ["layer2.1"],
    "attacks": ["peel-exact", {"kind": "e2e-lbfgs", "iterations": 30}],
    "metrics": ["leak", "psnr"],
    "training": {"epochs": 0},
    "victims": 4,
}


def audited(folder: Path, **changes: object) -> Audit:
    plan = make_plan(AuditConfig.checked(SETTINGS | changes))
    return run_audit(plan, Workplace(Store(folder), torch.device("cpu")), command="test")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return audited(tmp_path_factory.mktemp("store"), seeds=[0, 1])


def test_every_block_is_compared_with_what_it_read(finished: Audit) -> None:
    first, second = finished.document["targets"]
    assert "blocks" not in second  # one seed is enough
    exact, whole = first["blocks"]["attacks"]
    assert (exact["peeled"], whole["peeled"]) == (True, False)
    assert [row["block"] for row in exact["rows"]] == ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]
    assert all(row["error"] < 1e-4 and row["lost"] == 0 for row in exact["rows"])
    assert all(row["shape"] == [4, 8, 8] for row in exact["rows"][:3])
    maps = finished.pictures[f"maps/{exact['result']}"]
    assert maps.shape == (4, 2, 8, 8)
    # Inverted to the last digits, the guess is drawn as the truth is; both fill the scale of the true one.
    assert (maps[:, 0].int() - maps[:, 1].int()).abs().max() <= 1
    assert (maps[:, 0].flatten(1).amax(1) == 255).all()


def test_the_report_shows_blocks_where_there_are_any(finished: Audit, tmp_path: Path) -> None:
    write_folder(finished, tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "Which blocks leak" in text
    assert text.count("<code>layer2.0</code>") == 2  # in the table and over its feature map
    assert "recovered" in text
    plain = tmp_path / "plain"
    write_folder(audited(tmp_path / "store", model="convnet", cuts=[], attacks=["ridge"]), plain)
    assert "Which blocks leak" not in (plain / "report.html").read_text()


def test_a_network_without_shortcuts_is_compared_layer_by_layer(tmp_path: Path) -> None:
    attack = {"kind": "peel", "steps": 5, "plain_layers": True, "shallow": {"kind": "embedding", "steps": 5}}
    model = {**SETTINGS["model"], "skip": False}  # type: ignore[dict-item]
    document = audited(tmp_path, model=model, attacks=[attack]).document
    assert len(document["targets"][0]["blocks"]["attacks"][0]["rows"]) == 5
    flagged = [flag for flag in document["flags"] if flag["id"] in {"attack-diverged", "not-converged"}]
    assert flagged
    assert all("block" in flag["where"] and "layer2.1" in flag["where"] for flag in flagged)


def test_a_noisy_release_is_regularised_and_never_private_unless_it_converged(tmp_path: Path) -> None:
    document = audited(
        tmp_path, defenses=[{"kind": "gaussian", "sigma": 0.05}], threat={"access": ["features", "encoder"]}
    ).document
    for row in document["results"]:
        assert row["notes"]["release_error"] == pytest.approx(0.05, rel=0.1)
        assert row["notes"]["unexplained"] == 0
        assert "noise-not-averaged" not in row["flags"]
        assert row["metrics"]["leak"]["mean"] > 0.9
    # Noise that drowns the features: whatever is rebuilt, a flag says so or the features are explained.
    drowned = audited(
        tmp_path, defenses=[{"kind": "gaussian", "sigma": 50.0}], threat={"access": ["features", "encoder"]}
    ).document
    for row in drowned["results"]:
        converged = not row["notes"]["unexplained"] and not row["notes"]["diverged"]
        assert converged or {"not-converged", "attack-diverged", "features-unexplained"} & set(row["flags"])


NETWORKS = """
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.stem, self.conv, self.act = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), act
        self.sum, self.head = nn.Identity(), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.sum(self.conv(self.act(x)) + x))


def tanh():
    return Residual(nn.Tanh())


def in_place():
    return Residual(nn.ReLU(inplace=True))


def fine():
    return Residual(nn.ReLU())
"""


@pytest.mark.parametrize("attack", ["peel", "peel-exact"])
@pytest.mark.parametrize(
    ("model", "cut", "message"),
    [
        ("convnet", "features.3", "no residual block in front of the cut"),
        ("nets.py:tanh", "sum", "Tanh"),
        ("nets.py:in_place", "sum", "in-place layer"),
        ("nets.py:fine", "stem", "no residual block in front of the cut 'stem'"),
    ],
    ids=["no block", "unknown activation", "in-place ReLU", "cut before the first block"],
)
def test_what_cannot_be_peeled_is_refused_in_one_line_before_training(
    model: str, cut: str, message: str, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETWORKS)
    monkeypatch.setattr("leakscope.pipeline.train.train", lambda *_, **__: pytest.fail("it was trained"))
    arguments = ["audit", "--data", "digits", "--model", model, "--cut", cut, "--attack", attack, "--epochs", "1"]
    assert run(app, arguments) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert "use" in said


def test_a_suite_leaves_out_what_cannot_be_peeled(tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(json.dumps({"data": "digits", "model": "convnet", "attacks": "quick"}))
    plan = make_plan(AuditConfig.read(path, {}))
    assert "peel-exact" not in {attack.kind_name for attack in plan.attacks}
