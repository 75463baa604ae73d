"""Violent deaths and company: the grid completes, nothing is lost, doubled or unreadable, scores are the same."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leakscope.runners.schedule import Schedule
from leakscope.store import Store

from .grids import planned, scores, write_grid

ROOT = Path(__file__).parents[2]

COORDINATOR = """
import sys
import time
from pathlib import Path
from leakscope.experiments import stages
from leakscope.runners.bench import plan_bench
from leakscope.runners.in_process import InProcess
from leakscope.runners.schedule import Schedule, run_jobs
from leakscope.store import Store

folder, train = Path(sys.argv[1]), stages.train

def noted(*arguments, **settings):
    with (folder / "trained").open("a") as log:
        log.write(f"{settings['checkpoint'].parent.name}\\n")
    return train(*arguments, **settings)

stages.train = noted
store = Store(folder / "store")
jobs = plan_bench(folder / "grid.yaml", {}, None, store).jobs
runner = InProcess(store.root, "cpu")
(folder / f"ready-{sys.argv[2]}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.05)
run_jobs(Schedule.of(jobs, store), runner, store)
"""


def test_two_coordinators_train_every_target_once(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    bench = planned(tmp_path / "store", tmp_path)
    command = [sys.executable, "-c", COORDINATOR, str(tmp_path)]
    both = [subprocess.Popen([*command, name]) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    trained = (tmp_path / "trained").read_text().split()
    assert len(trained) == len(set(trained)) == len(bench.of("target"))
    assert scores(tmp_path / "store") == undisturbed


@pytest.mark.chaos
def test_a_grid_under_fire_completes_with_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four shots here, one of them a power cut; `python benchmarks/chaos.py` fires a hundred."""
    spec = importlib.util.spec_from_file_location("chaos", ROOT / "benchmarks" / "chaos.py")
    assert spec is not None
    assert spec.loader is not None
    chaos = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chaos)
    monkeypatch.setattr(chaos, "CUTS", 3)
    report = chaos.chaos(4, [str(write_grid(tmp_path))], tmp_path, pause=(1.0, 5.0))
    assert report["exit code of the last run"] == 0
    assert report["unreadable entries"] == []
    assert report["entries beyond an undisturbed run"] == 0
    assert report["scores equal"]
    assert report["kills"]["power cut"] == 1
    assert Schedule.of(planned(tmp_path / "chaos", tmp_path).jobs, Store(tmp_path / "chaos")).finished
