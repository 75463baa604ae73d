"""Somebody else's reconstructions are scored as ours are, and an audit lists them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from leakscope.core.errors import UsageError
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.finished import Audit
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.reading import read_entries
from leakscope.experiments.submissions import Card, submit
from leakscope.experiments.workplace import Workplace
from leakscope.runners.audit import run_audits
from leakscope.store import Store

SETTINGS: dict[str, Any] = {
    "data": "digits", "splits": {"private": 120, "heldout": 60, "public": 60}, "victims": 8, "cuts": ["features.2"],
    "attacks": ["ridge"],
    "model": {"kind": "convnet", "widths": [4, 4]}, "metrics": ["leak", "mse"], "training": {"epochs": 0},
    "defenses": ["gaussian:sigma=0.5"],
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(Store(tmp_path / "store"), torch.device("cpu"))


@pytest.fixture
def plan() -> Plan:
    return make_plan(AuditConfig.checked(SETTINGS))


def _handed_in(folder: Path, guess: torch.Tensor, **changes: Any) -> tuple[Path, Path]:
    path = folder / "theirs.safetensors"
    save_file({"guess": guess}, path)
    tree = {
        "name": "oracle", "by": "Somebody", "how": "They knew.", "threat": {"access": ["features"], "queries": 5},
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **changes,
    }  # fmt: skip
    card = folder / "card.yaml"
    card.write_text(yaml.safe_dump(tree))
    return path, card


def _audited(plan: Plan, place: Workplace) -> Audit:
    return run_audits([plan], place, command="")[0]


def test_an_outside_attack_is_scored_listed_and_counts(place: Workplace, plan: Plan, tmp_path: Path) -> None:
    before = _audited(plan, place).report
    assert any("E3" in text for text in before.evidence.missing)
    path, card = _handed_in(tmp_path, plan.scene.first_victims.images)
    handed_in = submit(plan, place, path, Card.read(card), "leakscope submit …").result
    assert handed_in.leak == pytest.approx(1)
    assert handed_in.metrics["mse"].mean == 0
    after = _audited(plan, place).report
    results = {result.attack.label: result for result in after.results}
    assert {"ridge", "outside:name=oracle"} <= set(results)
    assert results["outside:name=oracle"].by == "Somebody"
    (target,) = after.targets
    assert target.strongest == results["outside:name=oracle"].key
    assert target.worst_case["leak"].mean == pytest.approx(1), "the best known attack decides"
    assert "an outside attack that rebuilds more than the label tells" in after.evidence.met
    listed = {entry.result.attack.label: entry.result for entry in read_entries(place.store)}
    assert listed["outside:name=oracle"].traits.outside
    assert listed["outside:name=oracle"].threat.label == "features, 5 queries"
    assert not listed["ridge"].traits.outside
    # Other victims, or another target, are another matter.
    other = make_plan(AuditConfig.checked({**SETTINGS, "victims": 6}))
    assert not any(result.traits.outside for result in _audited(other, place).results)


@pytest.mark.parametrize(
    ("guess", "changes", "words"),
    [
        (torch.zeros(7, 1, 8, 8), {}, "8×1×8×8"),
        (torch.full((8, 1, 8, 8), 2.0), {}, "clamp"),
        (torch.full((8, 1, 8, 8), float("nan")), {}, "clamp"),
        (torch.zeros(8, 1, 8, 8), {"sha256": "0" * 64}, "SHA-256 differs"),
        (torch.zeros(8, 1, 8, 8), {"threat": {"access": ["mind"]}}, "threat.access"),
        (torch.zeros(8, 1, 8, 8), {"name": ""}, "name"),
        (torch.zeros(8, 1, 8, 8), {"extra": 1}, "extra"),
    ],
)
def test_what_cannot_be_scored_is_one_line(
    guess: torch.Tensor, changes: dict[str, Any], words: str, place: Workplace, plan: Plan, tmp_path: Path
) -> None:
    path, card = _handed_in(tmp_path, guess, **changes)
    with pytest.raises(UsageError, match=words) as raised:
        submit(plan, place, path, Card.read(card), "")
    assert "\n" not in str(raised.value)


def test_one_target_at_a_time(place: Workplace, tmp_path: Path) -> None:
    several = make_plan(AuditConfig.checked({**SETTINGS, "defenses": ["none", "dropout"]}))
    path, card = _handed_in(tmp_path, several.scene.first_victims.images)
    with pytest.raises(UsageError, match="2 targets"):
        submit(several, place, path, Card.read(card), "")
