"""What an undisturbed run in one process scores: the truth that runners and disasters are held to."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.runners.in_process import InProcess
from leakscope.runners.schedule import Schedule, run_jobs
from leakscope.store import Store

from .grids import planned, scores


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    bench = planned(folder / "store", folder)
    store = Store(folder / "store")
    counts = run_jobs(Schedule.of(bench.jobs, store), InProcess(store.root, "cpu"), store)
    assert counts == {"done": len(bench.jobs)}
    found = scores(store.root)
    assert len(found) >= len(bench.of("attack"))
    return found
