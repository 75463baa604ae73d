"""`leakscope selftest`: the references fit, a wrong device is found out, and the report says what it must."""

from __future__ import annotations

import json

import pytest
import torch

from leakscope.cli import app, run
from leakscope.commands.selftest import report
from leakscope.core.attack import ATTACKS
from leakscope.core.defense import DEFENSES
from leakscope.experiments import selftest
from leakscope.experiments.selftest import Check, Reference, SelfTest, references

QUICK = ("attack ridge", "attack gmi", "defence gaussian", "defence mixcon")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four methods: the whole takes a minute."""
    known = references()
    monkeypatch.setattr(selftest, "references", lambda: {name: known[name] for name in QUICK})


def test_every_attack_and_defence_has_a_reference() -> None:
    ours = [f"attack {name}" for name in ATTACKS if ATTACKS[name].__module__.startswith("leakscope.")]
    ours += [f"defence {name}" for name in DEFENSES if DEFENSES[name].__module__.startswith("leakscope.")]
    assert set(references()) == set(ours)


@pytest.mark.usefixtures("few")
def test_this_cpu_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["selftest", "--device", "cpu", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "4 of 4 scores agree with the CPU's." in told
    assert f"- torch: {torch.__version__}" in told
    assert run(app, ["selftest", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


@pytest.mark.usefixtures("few")
def test_wrong_arithmetic_is_found_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = torch.linalg.eigh

    def wrong(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = right(matrix)
        return 40 * values, vectors

    monkeypatch.setattr(torch.linalg, "eigh", wrong)
    assert run(app, ["selftest", "--device", "cpu", "--quiet"]) == 1
    assert "| attack ridge |" in next(line for line in capsys.readouterr().out.splitlines() if "DIFFERS" in line)


def test_a_method_that_fails_is_told_first() -> None:
    reference = Reference(0.5, 0.001)
    checks = (
        Check("attack ridge", 0.51, reference, 0.1),
        Check("attack peel", None, reference, 0.1, "RuntimeError: x"),
    )
    found = SelfTest("cuda", {"hardware": "one"}, checks)
    assert not found.passed
    rows = [line for line in report(found).splitlines() if line.startswith("| attack")]
    assert rows[0].startswith("| attack peel | did not run |")
    assert "RuntimeError: x" in rows[0]
    assert "±0.0200" in rows[1]
