"""Which blocks leak: the table of a target, the flags that name blocks, and what a bad network is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from leakscope.cli import app, run
from leakscope.core.words import FlagId
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.finished import Audit
from leakscope.experiments.folder import write_folder
from leakscope.experiments.plan import make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
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
    return run_audits([plan], Workplace(Store(folder), torch.device("cpu")), command="test")[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return audited(tmp_path_factory.mktemp("store"), seeds=[0, 1])


def test_every_block_is_compared_with_what_it_read(finished: Audit) -> None:
    first, second = finished.report.targets
    assert second.blocks is None  # one seed is enough
    assert first.blocks is not None
    exact, whole = first.blocks.attacks
    assert (exact.peeled, whole.peeled) == (True, False)
    assert [row.block for row in exact.rows] == ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]
    assert all(row.error is not None and row.error < 1e-4 and not row.lost for row in exact.rows)
    assert all(row.shape == (4, 8, 8) for row in exact.rows[:3])
    maps = finished.images[f"maps/{exact.result}"]
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
    report = audited(tmp_path, model=model, attacks=[attack]).report
    blocks = report.targets[0].blocks
    assert blocks is not None
    assert len(blocks.attacks[0].rows) == 5
    flagged = [flag for flag in report.flags if flag.id in {FlagId.DIVERGED, FlagId.NOT_CONVERGED}]
    assert flagged
    assert all("block" in flag.where and "layer2.1" in flag.where for flag in flagged)


def test_a_noisy_release_is_regularised_and_never_private_unless_it_converged(tmp_path: Path) -> None:
    report = audited(
        tmp_path, defenses=[{"kind": "gaussian", "sigma": 0.05}], threat={"access": ["features", "encoder"]}
    ).report
    for result in (own for own in report.results if own.attack.kind != "auto"):
        assert result.diagnostics.details["release_error"] == pytest.approx(0.05, rel=0.1)
        assert result.diagnostics.unexplained == 0
        assert FlagId.NOISE_NOT_AVERAGED not in {flag.id for flag in result.flags}
        assert result.leak > 0.9
    # Noise that drowns the features: whatever is rebuilt, a flag says so or the features are explained.
    drowned = audited(
        tmp_path, defenses=[{"kind": "gaussian", "sigma": 50.0}], threat={"access": ["features", "encoder"]}
    ).report
    doubts = {FlagId.NOT_CONVERGED, FlagId.DIVERGED, FlagId.FEATURES_UNEXPLAINED}
    for result in drowned.results:
        converged = not result.diagnostics.unexplained and not result.diagnostics.diverged
        assert converged or doubts & {flag.id for flag in result.flags}


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
    monkeypatch.setattr("leakscope.experiments.training.train", lambda *_, **__: pytest.fail("it was trained"))
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
