"""Who does the work of an audit: workers before threads, and neither for little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.commands import audits
from leakscope.commands.audits import pixels_looked_at, shares
from leakscope.core import waiting
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import Plan, make_plan
from leakscope.runners import machine
from leakscope.runners.audit import Labour


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(AuditConfig.checked({"data": "digits", "attacks": ["ridge", "decoder"], "victims": 8}))


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine of four cores, and the numbers of threads that were asked for on it."""
    asked: list[Any] = []
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    monkeypatch.setattr(machine, "free_cores", lambda: 3)
    monkeypatch.setattr("leakscope.core.memory.available", lambda: 64 << 30)
    monkeypatch.setattr(audits, "use_threads", asked.append)
    return asked


def test_small_work_is_done_here_by_one_thread(plan: Plan, four_cores: list[Any]) -> None:
    assert pixels_looked_at(plan) < audits.LARGE
    assert shares({"": plan}, "cpu", None, None) == Labour(None, 1)
    assert four_cores == [1]


def test_large_work_goes_to_workers(plan: Plan, four_cores: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "LARGE", 1)
    assert shares({"": plan}, "cpu", None, None) == Labour(min(4, plan.results), 1)
    assert shares({"": plan}, "cpu", None, 2) == Labour(2, 2)
    assert four_cores == []


def test_without_room_for_workers_threads_take_the_free_cores(
    plan: Plan, four_cores: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "LARGE", 1)
    monkeypatch.setattr("leakscope.core.memory.available", lambda: 1 << 30)
    assert shares({"": plan}, "cpu", None, None) == Labour(None, 1)
    assert four_cores == [3]


def test_what_is_asked_for_is_done(plan: Plan, four_cores: list[Any]) -> None:
    assert shares({"": plan}, "cpu", 3, 2) == Labour(3, 2)
    assert shares({"": plan}, "cuda", None, None) == Labour(None, 1)
    assert four_cores == []


def test_free_cores_are_those_that_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    for load, free in ((0.0, 8), (2.6, 5), (7.9, 1), (50.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert machine.free_cores() == free


def test_threads_wait_briefly_unless_somebody_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    waiting.spin_briefly()
    assert "GOMP_SPINCOUNT" not in __import__("os").environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    code = (
        "import sys; from leakscope.core.waiting import spin_briefly; spin_briefly(); "
        "import os; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [waiting.SPINS, "False"]
    # The wheel that this environment has reads that variable.
    assert list((Path(torch.__file__).parent / "lib").glob("libgomp*")) or sys.platform != "linux"
