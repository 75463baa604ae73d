"""A grid on the simulated device, from the command line: its workers are processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.cli import app, run
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import Labour, _runner
from leakscope.runners.devices import chosen
from leakscope.runners.pool import Pool
from leakscope.runners.runner import Outcome
from leakscope.store import Store

from ..runners.grids import planned, scores, write_grid


def test_a_bench_scores_as_on_the_cpu(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, attacks=["ridge"], defenses=["none"], controls=False)
    found = []
    for place in (["--device", "cpu", "--runner", "here"], ["--device", "sim:1"]):
        store = tmp_path / place[1].replace(":", "-")
        assert run(app, ["bench", str(grid), *place, "--store", str(store), "--quiet"]) == 0
        found.append(scores(store))
    here, there = found
    assert here.keys() == there.keys()
    assert here
    for key, metrics in here.items():
        assert metrics.keys() == there[key].keys()
        for name, values in metrics.items():
            assert there[key][name] == pytest.approx(values, rel=1e-3, abs=1e-3), name


def test_a_worker_works_on_the_device_it_is_given(tmp_path: Path) -> None:
    """Seen by one that does not exist: nothing falls back to the CPU."""
    store = Store(tmp_path / "store").root
    job = planned(store, tmp_path).jobs[0].as_json()
    pool = Pool(store, ["sim:7"], workers=1)
    try:
        pool.submit([job])
        happened = pool.wait(60)
        while not happened:
            happened = pool.wait(60)
    finally:
        pool.close()
    assert isinstance(happened[0], Outcome)
    assert happened[0].error is not None
    assert "device 'sim:7' cannot be used here" in happened[0].traceback


def test_an_audit_shares_all_devices_of_a_kind_out_among_its_workers(tmp_path: Path) -> None:
    place = Workplace(Store(tmp_path / "store"), chosen("sim"))
    runner = _runner([], place, Labour(workers=3))
    try:
        assert isinstance(runner, Pool)
        assert runner._devices == ["sim:0", "sim:1"]
    finally:
        runner.close()
