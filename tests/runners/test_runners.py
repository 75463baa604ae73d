"""The same scores from every runner, and a killed worker is one recorded failure."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakscope.runners.pool import Pool
from leakscope.runners.runner import Outcome, Runner
from leakscope.runners.schedule import Schedule, run_jobs
from leakscope.store import Store

from .grids import planned, scores

NODE = Path(__file__).parents[2] / ".ci" / "slurm-node"


def run(runner: Runner, store: Path, folder: Path, **changes: Any) -> dict[str, int]:
    bench = planned(store, folder, **changes)
    try:
        return run_jobs(Schedule.of(bench.jobs, Store(store)), runner, Store(store))
    finally:
        runner.close()


def test_the_pool_agrees_to_the_last_digit(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    store = Store(tmp_path / "store").root
    run(Pool(store, ["cpu"], workers=2), store, tmp_path)
    assert scores(store) == undisturbed


class KillOnce:
    """A pool whose first worker is killed as soon as it has a job."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.capacity, self.killed = pool, pool.capacity, ""

    def submit(self, jobs: list[Any]) -> None:
        self._pool.submit(jobs)
        if not self.killed:
            self.killed = f"{jobs[0]['stage']}-{jobs[0]['key']}"
            os.kill(self._pool._workers[0].process.pid, signal.SIGKILL)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def test_a_killed_worker_is_one_failure_and_the_pool_goes_on(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    bench = planned(tmp_path / "store", tmp_path)
    store = Store(tmp_path / "store")
    pool = KillOnce(Pool(store.root, ["cpu"], workers=1))
    try:
        counts = run_jobs(Schedule.of(bench.jobs, store), pool, store)
        assert counts["failed"] == 1
        assert counts["done"] == sum(pool.killed not in job.needs for job in bench.jobs) - 1 - _second_hand(bench, pool)
        assert "SIGKILL" in store.find(pool.killed.partition("-")[2]).record["error"]
        assert run_jobs(Schedule.of(bench.jobs, store, retry=True), pool, store) == {"done": len(bench.jobs)}
    finally:
        pool.close()
    assert scores(store.root) == undisturbed


def _second_hand(bench: Any, pool: KillOnce) -> int:
    """Jobs that need one that needs the killed one."""
    first = {job.id for job in bench.jobs if pool.killed in job.needs}
    return sum(bool(first & set(job.needs)) and pool.killed not in job.needs for job in bench.jobs)


def test_a_job_that_raises_tells_where(tmp_path: Path) -> None:
    bench = planned(tmp_path / "store", tmp_path)
    store = Store(tmp_path / "store")
    broken = {**bench.jobs[0].as_json(), "config": {"folder": "/", "audit": {"data": "nothing"}}}
    pool = Pool(store.root, ["cpu"], workers=1)
    try:
        pool.submit([broken])
        message: Any = []
        while not message:
            message = pool.wait(1.0)
    finally:
        pool.close()
    assert isinstance(message[0], Outcome)
    assert message[0].error is not None
    assert "unknown dataset 'nothing'" in message[0].error


def test_ray_agrees_to_the_last_digit_and_survives_a_lost_worker(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")
    from leakscope.runners.ray_cluster import Ray

    store = Store(tmp_path / "store").root
    runner = Ray(store, "cpu", address=None, workers=1)
    usual = runner._start
    runner._start = ray.remote(max_retries=0)(_die)
    runner.submit([planned(store, tmp_path).jobs[0].as_json()])
    happened: list[Any] = []
    while not happened:
        happened = runner.wait(1.0)
    assert "Ray worker died" in happened[0].error
    runner._start = usual
    run(runner, store, tmp_path)
    assert scores(store) == undisturbed


def test_a_ray_node_that_vanishes_is_one_line_about_the_job_it_ran(tmp_path: Path) -> None:
    """A real node beside the head of a real cluster, killed in the middle of a job."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")
    from ray.cluster_utils import Cluster

    from leakscope.runners.ray_cluster import Ray

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    runner = Ray(Store(tmp_path / "store").root, "cpu", address=cluster.address, workers=1)
    try:
        begun = tmp_path / "begun"
        runner._start = ray.remote(num_cpus=1, max_retries=0)(_begin_and_stay)
        runner.submit([{"stage": "target", "key": "k", "begun": str(begun)}])
        until = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)
        happened: list[Any] = []
        while not happened and time.monotonic() < until:
            happened = runner.wait(1.0)
    finally:
        runner.close()
        cluster.shutdown()
    assert [(outcome.job, outcome.error) for outcome in happened] == [("target-k", "the Ray node vanished")]


def _begin_and_stay(job: Any, *place: Any) -> None:
    Path(job["begun"]).touch()
    time.sleep(600)


def _die(*job: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_slurm_jobs_agree_when_run_as_processes_of_this_machine(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """A few jobs only, since each starts an interpreter; the whole grid runs on a real Slurm below."""
    pytest.importorskip("submitit", reason="submitit is not installed (extra: slurm)")
    from leakscope.runners.slurm import Slurm

    store = Store(tmp_path / "store").root
    run(
        Slurm(store, "cpu", cluster="local", workers=1),
        store,
        tmp_path,
        attacks=["ridge"],
        defenses=["none"],
        controls=False,
    )
    found = scores(store)
    assert len(found) == 1
    assert found.items() <= undisturbed.items()


@pytest.fixture
def slurm_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real cluster of one node, or a skip that says why there is none."""
    pytest.importorskip("submitit", reason="submitit is not installed (extra: slurm)")
    started = subprocess.run([NODE, "start", tmp_path / "node"], capture_output=True, text=True, timeout=300)
    if started.returncode:
        pytest.skip(f"no Slurm here: {started.stdout.strip().splitlines()[-1] if started.stdout else started.stderr}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "node" / "slurm.conf"))
    try:
        yield
    finally:
        subprocess.run([NODE, "stop", tmp_path / "node"], check=True)


@pytest.mark.usefixtures("slurm_node")
def test_a_real_slurm_agrees_to_the_last_digit(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    from leakscope.runners.slurm import Slurm

    store = Store(tmp_path / "store").root
    run(Slurm(store, "cpu", workers=1), store, tmp_path)
    assert scores(store) == undisturbed


@pytest.mark.usefixtures("slurm_node")
def test_a_cancelled_slurm_job_is_one_recorded_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leakscope.runners import slurm

    monkeypatch.setattr(slurm, "ASK_EVERY", 0.5)
    monkeypatch.setattr(slurm, "GRACE", 1.0)
    bench = planned(tmp_path / "store", tmp_path)
    store = Store(tmp_path / "store")
    target = bench.of("target")[0]
    runner = slurm.Slurm(store.root, "cpu", workers=1)
    runner.submit([target.as_json()])
    subprocess.run(["scancel", "--name=leakscope"], check=True)
    happened: list[Any] = []
    while not happened:
        happened = runner.wait(5.0)
    assert "CANCELLED" in happened[0].error
