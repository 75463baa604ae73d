"""The memory that `--dry-run` announces is that of the network, and lowers what is done at once."""

from __future__ import annotations

import pytest
import torch

from leakscope.cli import app, run
from leakscope.experiments import memory_plan
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.memory_plan import plan_memory
from leakscope.experiments.plan import Plan, make_plan

CPU = torch.device("cpu")
#: The first convolution gives 16 maps of 8×8, which the rectifier copies.
MAP = 16 * 8 * 8 * 4


@pytest.fixture(scope="module")
def plan() -> Plan:
    settings = {"data": "digits", "model": "convnet", "cuts": ["features.0", "features.7"], "attacks": ["ridge"]}
    return make_plan(AuditConfig.model_validate(settings))


def test_a_picture_costs_what_the_network_makes_of_it(plan: Plan) -> None:
    first, last = plan_memory(plan, CPU).cuts
    assert first.forward >= MAP
    assert first.forward < first.gradient
    assert last.gradient > first.gradient
    assert (first.released_at_once, first.searched_at_once) == (256, 64)


def test_little_memory_makes_small_chunks(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "free_on", lambda device: 300_000)
    found = plan_memory(plan, CPU)
    assert all(cut.searched_at_once < 64 for cut in found.cuts)
    assert "300 kB free on cpu" in found.words()


def test_a_dry_run_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["audit", "--data", "digits", "--model", "convnet", "--dry-run", "--device", "cpu"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("chunks"))
    assert "free on cpu" in line
    assert "searched at once" in line
