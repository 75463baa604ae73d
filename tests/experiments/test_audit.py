"""The audit as a whole: honest about weak attacks, the same twice, and undisturbed by a violent death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.cli import app, run
from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.errors import UsageError
from leakscope.core.reports import AuditReport
from leakscope.core.results import from_json
from leakscope.core.seeds import ambient
from leakscope.core.words import Control
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
from leakscope.store import Store

TINY: dict[str, Any] = {
    "data": "digits",
    "model": "convnet",
    "cuts": ["features.2"],
    "victims": 16,
    "attacks": ["ridge", "decoder:steps=80", "search:steps=40"],
    "training": {"epochs": 2},
}


def _audit(store: Path, **settings: Any) -> AuditReport:
    plan = make_plan(AuditConfig.checked({**TINY, **settings}))
    return run_audits([plan], Workplace(Store(store), torch.device("cpu")), command="test")[0].report


def _scores(report: AuditReport) -> list[tuple[str, str, Any]]:
    return [(result.key, result.attack.label, result.metrics) for result in report.results]


def _flags(report: AuditReport) -> set[str]:
    return {flag.id.value for flag in report.flags}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AuditReport]:
    store = tmp_path_factory.mktemp("audit") / "store"
    return store, _audit(store, defenses=["none", "gaussian:sigma=2.0"])


def test_floors_controls_and_results_are_all_there(measured: tuple[Path, AuditReport]) -> None:
    report = measured[1]
    assert report.verdict == "measured"
    assert report.evidence.level == "E0"
    assert abs(report.floors["class-mean"]["leak"].mean) < 1e-6
    assert report.floors["mean"]["leak"].mean < 0
    assert report.control(Control.POSITIVE).passed
    assert report.control(Control.NEGATIVE).passed
    assert len(report.results) == 2 * 3
    for result in report.results:
        leak = result.metrics["leak"]
        assert leak.low <= leak.mean <= leak.high <= leak.worst <= 1


def test_a_defence_leaks_less_and_its_accuracy_stands_beside_it(measured: tuple[Path, AuditReport]) -> None:
    undefended, noisy = measured[1].targets
    assert (undefended.record.defense.label, noisy.record.defense.label) == ("none", "gaussian:sigma=2.0")
    assert noisy.worst_case["leak"].mean < undefended.worst_case["leak"].mean - 0.1
    assert undefended.record.random_release is False
    assert noisy.record.random_release is True
    assert undefended.record.accuracy is not None
    assert undefended.record.accuracy > 0.5


def test_the_headline_reaches_the_strongest_attack_and_does_not_pass_it(measured: tuple[Path, AuditReport]) -> None:
    report = measured[1]
    for target in report.targets:
        results = report.of_target(target.record.key)
        leak = target.worst_case["leak"]
        assert leak.mean <= max(result.leak for result in results) <= leak.high
        assert target.strongest == max(results, key=lambda result: result.leak).key


def test_pictures_are_chosen_by_rank(measured: tuple[Path, AuditReport]) -> None:
    for shown in measured[1].pictures.values():
        assert list(shown.leak) == sorted(shown.leak, reverse=True)
        assert list(shown.groups) == sorted(shown.groups, key=["worst", "most leaked", "median", "least leaked"].index)


def test_the_worst_picture_is_the_one_whose_figure_stands_beside_it(measured: tuple[Path, AuditReport]) -> None:
    report = measured[1]
    for result in report.results:
        assert report.pictures[result.key].leak[0] == pytest.approx(result.metrics["leak"].worst)


def test_a_second_run_computes_nothing(measured: tuple[Path, AuditReport], monkeypatch: pytest.MonkeyPatch) -> None:
    store, report = measured

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("nothing is left to compute")

    monkeypatch.setattr(Store, "put", refuse)
    assert _scores(_audit(store, defenses=["none", "gaussian:sigma=2.0"])) == _scores(report)


def test_a_new_metric_trains_and_attacks_nothing_anew(measured: tuple[Path, AuditReport]) -> None:
    store, _ = measured
    count = {kind: len(Store(store).keys(kind)) for kind in ("trained", "prepared", "attack")}
    report = _audit(store, defenses=["none", "gaussian:sigma=2.0"], metrics=["leak", "mse"])
    assert set(report.results[0].metrics) == {"leak", "mse"}
    assert count == {kind: len(Store(store).keys(kind)) for kind in count}


def test_two_empty_stores_give_the_same_bytes(measured: tuple[Path, AuditReport], tmp_path: Path) -> None:
    again = _audit(tmp_path, defenses=["none", "gaussian:sigma=2.0"])
    assert _scores(again) == _scores(measured[1])


@pytest.mark.parametrize("attack", ["decoder:steps=0", "search:steps=0"])
def test_a_crippled_attack_is_inconclusive_not_private(tmp_path: Path, attack: str) -> None:
    report = _audit(tmp_path, attacks=[attack], gate="leak<=0.99")
    assert report.verdict == "inconclusive"
    assert report.exit_code == 4
    assert not report.control(Control.POSITIVE).passed
    assert "control-failed" in _flags(report)


@DEFENSES.register("test-rounding")
@dataclass(frozen=True)
class Rounding(Defense):
    """A fake defence: rounds features, so that gradients vanish and nothing is hidden."""

    step: float = 0.25

    def rebuild(self, split: leakscope.SplitModel, example: Tensor) -> leakscope.SplitModel:
        class Rounded(nn.Module):
            def __init__(self, body: nn.Module, step: float) -> None:
                super().__init__()
                self.body, self.step = body, step

            def forward(self, x: Tensor) -> Tensor:
                z: Tensor = self.body(x)
                if self.training:
                    return z
                return (z / self.step).round() * self.step

        parent, _, name = split.cut.rpartition(".")
        setattr(split.model.get_submodule(parent), name, Rounded(split.model.get_submodule(split.cut), self.step))
        return split


def test_rounding_is_broken_and_flagged(tmp_path: Path) -> None:
    report = _audit(tmp_path, defenses=["test-rounding"], gate="leak<=0.5")
    assert report.verdict == "fail"
    assert {"zero-gradient", "black-box-beats-white-box"} <= _flags(report)


def test_e2_runs_canary_and_budget(tmp_path: Path) -> None:
    report = _audit(
        tmp_path, evidence="E2", seeds=[0], attacks=["ridge", "decoder:steps=60"], defenses=["gaussian:sigma=1.0"]
    )
    assert report.control(Control.CANARY).passed is not None
    assert report.evidence.level == "E0"  # not the full suite, not three seeds
    missing = report.evidence.missing
    assert any("three seeds" in text for text in missing)
    assert any("undefended twin" in text for text in missing)  # only a defended target was audited


def test_points_that_are_not_pictures_are_audited_too(tmp_path: Path) -> None:
    report = _audit(tmp_path, data="gaussians", model="mlp", cuts=[], attacks=["ridge"], training={"epochs": 2})
    assert set(report.results[0].metrics) == {"leak", "mse", "cosine"}
    assert report.pictures == {}


def test_a_module_in_memory(tmp_path: Path) -> None:
    with ambient(0, "api"):
        model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 3))
        images, labels = torch.rand(300, 1, 8, 8), torch.arange(300) % 3
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = leakscope.audit(model, (images, labels), cut="1", attacks=["ridge"], victims=8, out=tmp_path / "out")
    assert result.verdict in {"measured", "inconclusive"}
    assert result.results[0].leak > 0.5
    assert (tmp_path / "out" / "report.html").exists()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_kill_9_in_an_attack_loses_only_that_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["audit", "--data", "digits", "--epochs", "2", "--victims", "16", "--cut", "features.2", "--quiet"]
    arguments += ["--attack", "ridge", "--attack", "decoder:steps=150", "--json", "--out", str(tmp_path / "out")]
    arguments += ["--set", "splits={private: 300, heldout: 100, public: 300}", "--set", "metrics=[leak]"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(store: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "leakscope", *arguments, "--store", str(store)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    victim = start(tmp_path / "killed")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("entries/result/*/*")):  # ridge is done, decoder under way
        assert victim.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    killed = Store(tmp_path / "killed")
    trained = {
        entry: (killed.root / "entries/trained" / entry[:2] / entry).stat().st_mtime_ns
        for entry in killed.keys("trained")
    }
    assert trained
    again = start(tmp_path / "killed")
    out, error = again.communicate(timeout=240)
    assert again.returncode == 0, error
    assert run(app, [*arguments, "--store", str(tmp_path / "calm")]) == 0
    resumed, calm = (from_json(AuditReport, json.loads(text)) for text in (out, capsys.readouterr().out))
    assert _scores(resumed) == _scores(calm)
    for entry, stamp in trained.items():
        assert (killed.root / "entries/trained" / entry[:2] / entry).stat().st_mtime_ns == stamp


def test_attacks_that_peel_blocks_have_a_control_of_their_own(tmp_path: Path) -> None:
    residual = {"model": "preact-resnet:width=8", "cuts": ["layer1"], "resize": 16, "training": {"epochs": 0}}
    report = _audit(tmp_path, **residual, attacks=["peel-exact", "e2e-lbfgs"], victims=4)
    exact = next(control for control in report.control(Control.POSITIVE).results if control.attack == "peel-exact")
    assert exact.value > 0.999
    assert report.results[0].leak > 0.999


def test_an_attack_that_does_not_suit_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no residual block"):
        _audit(tmp_path, attacks=["peel-exact"])
    assert not Store(tmp_path).keys("trained")


def test_too_little_public_data_is_weak_not_broken(tmp_path: Path) -> None:
    few = {"splits": {"private": 200, "heldout": 40, "public": 20}, "training": {"epochs": 1}, "attacks": ["ridge"]}
    report = _audit(tmp_path / "a", **few)
    # Twenty pictures do not span 64 pixels: ridge works, but cannot learn these.
    assert not report.control(Control.POSITIVE).passed
    assert "weak-on-control" in _flags(report)
    assert report.verdict == "measured"
    leak = report.targets[0].worst_case["leak"].high
    assert _audit(tmp_path / "b", **few, gate=f"leak<={leak + 0.01}").verdict == "inconclusive"
