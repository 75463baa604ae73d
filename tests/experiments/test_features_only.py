"""The weakest row of the threat table: released features and public pictures, no queries, no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core.reports import AuditReport
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.report.summary import markdown
from leakscope.runners.audit import run_audits
from leakscope.store import Store


def plan(**settings: Any) -> Plan:
    return make_plan(AuditConfig.checked({
        "data": "digits", "model": "convnet", "cuts": ["features.2"], "victims": 16, "attacks": "quick",
        "training": {"epochs": 1}, "gate": "leak<=0.3", "metrics": ["leak", "mse"], **settings,
    }))  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    path: Path = tmp_path_factory.mktemp("features") / "store"
    place = Workplace(Store(path), torch.device("cpu"))
    return run_audits([plan(threat={"access": ["features"]})], place, command="test")[0].report


def test_an_audit_of_features_alone_finds_the_leak(report: AuditReport) -> None:
    assert [result.attack.label for result in report.results] == ["pseudo-client"]
    assert report.verdict == "fail"
    assert report.results[0].leak > 0.5
    assert report.evidence.level == "E0"


def test_what_it_says_names_the_attack_and_why_others_did_not_run(report: AuditReport) -> None:
    text = markdown(report)
    assert text.startswith("# Leakscope: Fail")
    assert "pseudo-client" in text
    reasons = {out.attack: out.reason for out in report.left_out}
    assert "needs query" in reasons["ridge"]
    assert "pseudo-client" not in reasons


@pytest.mark.parametrize("access", [["features", "query"], ["features", "encoder"]])
@pytest.mark.parametrize("suite", ["quick", "full"])
def test_suites_leave_it_out_where_nothing_need_be_guessed(access: list[str], suite: str) -> None:
    made = plan(threat={"access": access}, attacks=suite)
    assert "pseudo-client" not in {attack.kind_name for attack in made.attacks}
    assert "guesses the encoder" in next(out.reason for out in made.left_out if out.attack == "pseudo-client")


def test_whoever_names_it_gets_it() -> None:
    assert [attack.kind_name for attack in plan(attacks=["pseudo-client"]).attacks] == ["pseudo-client"]
