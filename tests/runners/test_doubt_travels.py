"""What casts doubt on a number goes wherever the number goes: grids, leaderboards, trackers, single attacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leakscope.cli import app, run
from leakscope.core.words import FlagId
from leakscope.experiments.reading import read_entries
from leakscope.report.leaderboard import sections
from leakscope.report.results import Entry, choose
from leakscope.runners.bench import Bench
from leakscope.runners.events import Event
from leakscope.runners.in_process import InProcess
from leakscope.runners.schedule import Schedule, run_jobs
from leakscope.runners.status import strongest
from leakscope.runners.trackers import _Scores
from leakscope.store import Store

from .grids import planned

#: A class grid: identities of drawn faces, one attack with the linear prior.
CLASSES: dict[str, Any] = {
    "data": [{"data": "toyfaces:identities=12,images=12,size=16,grey=true"}],
    "models": [{"model": "mlp:widths=[32,16]", "cuts": ["relu1"]}],
    "base": {
        "splits": {"private": 0.4, "heldout": 0.2, "public": 0.4, "by_identity": True},
        "training": {"epochs": 3, "learning_rate": 0.01},
        "victims": 4,
        "evaluator": {"model": "mlp:widths=[32]", "training": {"epochs": 25, "learning_rate": 0.01}},
    },
    "defenses": ["none"],
    "attacks": [{"kind": "gmi", "prior": {"kind": "linear", "components": 8}, "steps": 10, "images": 2}],
}


def finished(folder: Path, **changes: Any) -> tuple[Bench, Store, Schedule]:
    bench = planned(folder / "store", folder, **changes)
    store = Store(folder / "store")
    schedule = Schedule.of(bench.jobs, store)
    assert run_jobs(schedule, InProcess(store.root, "cpu"), store) == {"done": len(bench.jobs)}
    return bench, store, schedule


def test_a_crippled_attack_is_marked_and_its_defence_does_not_rank_first(tmp_path: Path) -> None:
    """A decoder of no steps rebuilds nothing of the noisy target: that is no merit of the noise."""
    attacks = ["decoder:steps=0"]
    _, store, _ = finished(tmp_path, attacks=attacks, defenses=["none", "gaussian:sigma=0.5"], seeds=[0, 1, 2])
    entries = [Entry(found.target, found.result) for found in read_entries(store)]
    assert all(FlagId.CONTROL_FAILED in {flag.id for flag in entry.result.flags} for entry in entries)
    (section,) = sections(choose(entries))
    assert all(row.doubts for row in section.rows)
    assert not any(row.strongest.best for row in section.rows)
    assert not any(row.on_front for row in section.rows)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Store, Schedule, Path]:
    folder = tmp_path_factory.mktemp("classes")
    return *finished(folder, **CLASSES), folder


def test_the_first_look_at_a_grid_finds_results_on_classes(classes: tuple[Bench, Store, Schedule, Path]) -> None:
    bench, store, schedule, _ = classes
    (line,) = strongest(bench, schedule, store)
    assert "by gmi" in line


def test_trackers_are_told_scores_and_doubts_of_results_on_classes(
    classes: tuple[Bench, Store, Schedule, Path],
) -> None:
    bench, store, _, _ = classes
    logged: dict[str, float] = {}
    watcher = _Scores(store, lambda name, value, step: logged.update({name: value}), lambda: None)
    for job in bench.of("attack"):
        watcher.tell(Event("done", job=job.id, stage=job.stage, key=job.key, seconds=1.0))
    assert any(name.startswith("attack-accuracy/") for name in logged)
    assert any(name.startswith("doubts/") for name in logged)


def test_directions_are_declared_not_guessed(classes: tuple[Bench, Store, Schedule, Path]) -> None:
    """One value has no worst side to guess from: FID says itself that low means more."""
    entries = [Entry(found.target, found.result) for found in read_entries(classes[1])]
    assert choose(entries, "fid:evaluator").more_leak == "low"
    assert choose(entries, "attack-accuracy").more_leak == "high"


def test_one_attack_on_classes_is_scored_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "data": CLASSES["data"][0]["data"], "model": "mlp:widths=[32,16]", "cuts": ["relu1"], **CLASSES["base"],
        "attacks": CLASSES["attacks"],
    }  # fmt: skip
    path = tmp_path / "classes.yaml"
    path.write_text(json.dumps(settings))
    assert run(app, ["attack", str(path), "--store", str(tmp_path / "store"), "--json", "--quiet"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["result"]["metrics"]["attack-accuracy"]["n"] == 4


def test_a_trained_defended_target_is_shown_by_the_key_that_train_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "store")
    words = ["--data", "digits", "--model", "mlp:widths=[16]", "--defense", "dropout:p=0.2", "--epochs", "1"]
    assert run(app, ["train", *words, "--store", store, "--quiet"]) == 0
    key = capsys.readouterr().out.split()[0]
    assert run(app, ["show", key, "--store", store]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "target"
