"""What a plan promises: the same attacks for all, gates that can be passed."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.spec import label
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import Plan, make_plan

BASE: dict[str, Any] = {
    "data": "digits", "splits": {"private": 120, "heldout": 60, "public": 60}, "victims": 4, "cuts": ["features.2"],
    "attacks": ["ridge"], "model": {"kind": "convnet", "widths": [4, 4]}, "metrics": ["leak", "mse", "ssim"],
    "training": {"epochs": 0},
}  # fmt: skip


def _plan(**settings: Any) -> Plan:
    return make_plan(AuditConfig.checked({**BASE, **settings}))


def test_the_twin_meets_the_attacks_made_against_the_defence() -> None:
    plan = _plan(defenses=["none", "gaussian:sigma=0.5"])
    met = {target.defense.kind_name: [label(a) for a in plan.attacks_on(target)] for target in plan.targets}
    assert met == {"none": ["ridge", "auto"], "gaussian": ["ridge", "auto"]}
    assert [label(attack) for attack in plan.added] == ["auto"]
    alone = _plan(defenses=["none"])
    assert alone.added == []
    unknown = _plan(defenses=["none", "gaussian:sigma=0.5"], threat={"knows_defense": False})
    assert unknown.added == []


def test_a_dry_run_names_what_was_added(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "digits", "--cut", "features.2", "--attack", "ridge", "--defense", "gaussian", "--dry-run"]
    assert run(app, ["audit", *words]) == 0
    assert "added      auto (made against the defences" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attacks": "quick", "evidence": "E1"}, "leave `attacks`"),
        ({"attacks": "", "evidence": "E0"}, "the full suite of attacks: give --evidence E1.*three seeds"),
        ({"attacks": "full", "evidence": "E1", "seeds": [0, 1]}, "three seeds: give three"),
        ({"attacks": "full", "evidence": "E1", "defenses": ["gaussian"]}, "name `none`"),
    ],
)
def test_a_level_that_cannot_be_reached_is_refused_with_the_remedy(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _plan(gate="leak<=0.2 at E1", **{"defenses": ["none", "gaussian"], **settings})


def test_a_level_that_can_be_reached_is_not() -> None:
    both = {"defenses": ["none", "gaussian"]}
    assert _plan(gate="leak<=0.2 at E1", attacks="", evidence="E1", **both).gate is not None
    assert _plan(gate="leak<=0.2", **both).gate is not None
    with pytest.raises(UsageError, match="--evidence E2"):
        _plan(gate="leak<=0.2 at E2", attacks="", evidence="E1", **both)


@pytest.mark.parametrize("gate", ["leak<=1.5", "leak<=-0.1", "ssim<=2", "mse>=3", "exposed<=7"])
def test_a_limit_outside_the_range_of_its_metric_is_refused(gate: str) -> None:
    with pytest.raises(UsageError, match="a limit on"):
        _plan(gate=gate)


def test_the_demo_can_pass_its_documented_gate(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", "configs/demo.yaml", "--gate", "leak<=0.3 at E1", "--evidence", "E1", "--dry-run"]
    assert run(app, words) == 0
