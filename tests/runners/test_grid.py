"""Grids: every combination once, exceptions, presets, and a plan that is kept until something changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.core.errors import UsageError
from leakscope.experiments.grid import BenchConfig, grid_jobs
from leakscope.runners.bench import plan_bench
from leakscope.store import Store

from .grids import GRID, planned, stages, write_grid

CONFIGS = Path(__file__).parents[2] / "configs"


def test_every_combination_is_planned_once() -> None:
    jobs = grid_jobs(BenchConfig.checked(GRID))
    assert stages(jobs) == {"target": 2, "prepare": 2, "attack": 4, "control": 2}
    places = {job.id: number for number, job in enumerate(jobs)}
    assert len(places) == len(jobs)
    assert all(places[need] < places[job.id] for job in jobs for need in job.needs)


def test_threats_cuts_and_victims_share_their_targets() -> None:
    threats = {"all": {}, "black-box": {"access": ["features", "query"]}}
    jobs = grid_jobs(BenchConfig.checked({**GRID, "threats": threats, "controls": False}))
    assert stages(jobs) == {"target": 2, "prepare": 4, "attack": 8, "control": 0}
    besides = [{"data": "digits", "model": "mlp:widths=[32,16]", "cuts": ["relu1"], "victims": 9}]
    jobs = grid_jobs(BenchConfig.checked({**GRID, "include": besides, "controls": False}))
    assert stages(jobs) == {"target": 2, "prepare": 2, "attack": 8, "control": 0}, (
        "learnt once for both sets of victims"
    )


def test_an_undefended_network_is_trained_once_for_all_its_cuts() -> None:
    models = [{"model": "mlp:widths=[32,16]", "cuts": ["relu1", "relu2"]}]
    jobs = grid_jobs(BenchConfig.checked({**GRID, "models": models, "defenses": ["none"], "controls": False}))
    first, second = (job for job in jobs if job.stage == "target")
    assert first.makes[0] == second.makes[0]
    assert second.needs == (first.id,)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ({"defense": "gaussian*"}, {"target": 1, "prepare": 1, "attack": 2, "control": 0}),
        ({"attack": "decoder*", "defense": "none"}, {"target": 2, "prepare": 1, "attack": 3, "control": 0}),
        ({"attack": "ridge"}, {"target": 2, "prepare": 2, "attack": 2, "control": 0}),
        ({"data": "mnist*"}, {"target": 2, "prepare": 2, "attack": 4, "control": 0}),
    ],
)
def test_exceptions_leave_out_what_they_name(pattern: dict[str, str], left: dict[str, int]) -> None:
    jobs = grid_jobs(BenchConfig.checked({**GRID, "exclude": [pattern], "controls": False}))
    assert stages(jobs) == left


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exclude": [{"defence": "none"}]}, "may name: data"),
        ({"attack": ["ridge"]}, "attack: Extra inputs"),
        ({"seeds": []}, "seeds"),
        ({"defenses": ["gausian"]}, "did you mean"),
        ({"models": ["mlp:widths=[0]"]}, "widths must name"),
        ({"budgets": {"hours": -1}}, "budgets.hours"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        grid_jobs(BenchConfig.checked({**GRID, **changes}))
    assert "\n" not in str(caught.value)


def test_a_scale_and_settings_override_the_file(tmp_path: Path) -> None:
    path = write_grid(tmp_path, scales={"long": {"base.training.epochs": 9, "seeds": [0, 1, 2]}})
    config = BenchConfig.read(path, {"base.victims": 7}, "long")
    audit = config.audits()[0][1]
    assert (audit.training.epochs, audit.seeds, audit.victims) == (9, [0, 1, 2], 7)
    with pytest.raises(UsageError, match="it has: long"):
        BenchConfig.read(path, {}, "paper")


def test_the_plan_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = planned(store, tmp_path)
    assert [job.as_json() for job in planned(store, tmp_path).jobs] == [job.as_json() for job in first.jobs]
    assert len(Store(store).keys("grid")) == 1
    assert planned(store, tmp_path, seeds=[0, 1]).key != first.key


def test_a_finished_grid_is_recognised_without_torch(tmp_path: Path) -> None:
    planned(tmp_path / "store", tmp_path)
    code = (
        "import sys; from pathlib import Path; from leakscope.runners.status import expectation\n"
        "from leakscope.runners.bench import plan_bench; from leakscope.store import Store\n"
        "store = Store(Path(sys.argv[1]) / 'store')\n"
        "expectation(plan_bench(Path(sys.argv[1]) / 'grid.yaml', {}, None, store), store, 2)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=Path.cwd())


def test_the_smoke_grid_shares_six_targets(tmp_path: Path) -> None:
    bench = plan_bench(CONFIGS / "bench_smoke.yaml", {}, None, Store(tmp_path))
    trained = {key for job in bench.jobs for kind, key in job.makes if kind == "trained"}
    assert len(bench.of("attack")) >= 24
    assert len(trained) <= 6
