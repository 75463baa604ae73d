"""Full disks, read-only and newer stores, damaged entries: one line, nothing lost, a way on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakscope.runners.in_process import InProcess
from leakscope.runners.schedule import Schedule, run_jobs
from leakscope.store import Store

from .grids import planned, scores, write_grid


def bench(grid: Path, store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leakscope", "bench", str(grid), "--store", str(store), "--runner", "here"]
    return subprocess.run([*command, "--quiet", *options], capture_output=True, text=True)


def test_a_newer_store_is_refused_in_one_line(tmp_path: Path) -> None:
    Store(tmp_path / "store")
    (tmp_path / "store" / "VERSION").write_text("99\n")
    answer = bench(write_grid(tmp_path), tmp_path / "store")
    assert answer.returncode == 2
    assert "newer Leakscope" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [("--slurm", "cluster=nowhere", "--runner", "slurm"), ("--runner", "moon")])
def test_a_place_that_is_not_there_is_one_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    planned(tmp_path / "store", tmp_path)
    answer = bench(tmp_path / "grid.yaml", tmp_path / "store", *options)
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("file", ["record.json", "tensors.safetensors"])
def test_a_damaged_entry_is_put_aside_and_computed_again(tmp_path: Path, file: str) -> None:
    jobs = planned(tmp_path / "store", tmp_path, attacks=["ridge"], defenses=["none"], controls=False).jobs
    store = Store(tmp_path / "store")
    first = InProcess(store.root, "cpu")
    assert run_jobs(Schedule.of(jobs, store), first, store) == {"done": 2}
    before = scores(store.root)
    attack = next(job for job in jobs if job.stage == "attack")
    store.discard(*attack.makes[1])  # its scores are missing, and to score it again the attack must be read
    entry = store.get(*attack.makes[0])
    assert entry is not None
    damaged = entry.folder / file
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert run_jobs(Schedule.of(jobs, store), first, store) == {"done": 2}
    assert len(list((store.root / "damaged").iterdir())) == 1
    assert scores(store.root) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_stops_in_one_line_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    jobs = planned(small_disk / "store", tmp_path, attacks=["ridge"], defenses=["none"], controls=False).jobs
    store = Store(small_disk / "store")
    assert run_jobs(Schedule.of(jobs[:1], store), InProcess(store.root, "cpu"), store) == {"done": 1}
    filler = small_disk / "filler"
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(bytes(free))
    answer = bench(tmp_path / "grid.yaml", store.root)
    assert answer.returncode == 3, answer.stderr
    assert "No space left on device" in answer.stderr
    assert answer.stderr.count("\n") == 1
    filler.unlink()
    assert Schedule.of(jobs, store).counts == {"done": 1, "waiting": len(jobs) - 1}
    assert run_jobs(Schedule.of(jobs, store), InProcess(store.root, "cpu"), store) == {"done": len(jobs)}


def test_a_read_only_store_is_refused_in_one_line(tmp_path: Path, small_disk: Path) -> None:
    planned(small_disk / "store", tmp_path)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    answer = bench(tmp_path / "grid.yaml", small_disk / "store")
    assert answer.returncode == 2, answer.stderr  # as docs/how-to/cluster.md says
    assert "cannot write to the store" in answer.stderr
    assert "ead-only" in answer.stderr
    assert answer.stderr.count("\n") == 1
