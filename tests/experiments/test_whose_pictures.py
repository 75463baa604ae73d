"""Who is attacked, and with whose pictures: training pictures as victims, and as the attacker's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core.errors import UsageError
from leakscope.core.reports import AuditReport
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.jobs import portable
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.separability import separability
from leakscope.runners.audit import run_audits
from leakscope.store import Store

SMALL: dict[str, Any] = {
    "data": "digits",
    "splits": {"private": 300, "heldout": 100, "public": 200},
    "model": "lenet5",
    "resize": 12,
    "cuts": ["block1"],
    "victims": 9,
    "attacks": ["ridge"],
    "training": {"epochs": 1},
}


def planned(**settings: Any) -> Plan:
    return make_plan(AuditConfig.checked({**SMALL, **settings}))


def audited(tmp_path: Path, **settings: Any) -> AuditReport:
    place = Workplace(Store(tmp_path), torch.device("cpu"))
    return run_audits([planned(**settings)], place, command="test")[0].report


def marks(pictures: Any) -> set[str]:
    return set(pictures.fingerprints())


def test_victims_come_from_where_they_are_asked_for() -> None:
    scene = planned(victims={"from": "both", "count": 9}).scene
    victims, splits = scene.first_victims, scene.splits
    assert len(victims) == 9
    assert marks(victims.take(torch.arange(4))) <= marks(splits.private)
    assert marks(victims.take(torch.arange(4, 9))) <= marks(splits.heldout)
    assert marks(planned(victims={"from": "private", "count": 9}).scene.first_victims) <= marks(splits.private)


def test_a_plain_number_means_what_it_meant() -> None:
    plain, named = planned().scene, planned(victims={"from": "heldout", "count": 9}).scene
    assert plain.first_victims.digest() == named.first_victims.digest()
    again = AuditConfig.checked(portable(planned(victims={"from": "private", "count": 9}).scene)["audit"])
    assert again.chosen_victims.source == "private"


def test_the_record_says_whose_pictures(tmp_path: Path) -> None:
    report = audited(tmp_path, victims={"from": "private", "count": 9}, threat={"public": "both"})
    assert report.data.victims_from == "private"
    assert {result.victims_from for result in report.results} == {"private"}
    assert report.threat.public == "both"
    assert "has the training pictures and its own" in report.threat.label
    # Ridge learned from the very pictures it is asked for, and the page says so.
    assert any(flag.id.value == "near-duplicates" for flag in report.flags)


def test_an_insider_learns_from_the_training_pictures() -> None:
    insider, outsider = planned(threat={"public": "private"}).scene, planned().scene
    assert insider.public.digest() == insider.splits.private.digest()
    assert planned(threat={"public": "both"}).scene.public.digest() not in {
        insider.public.digest(), outsider.public.digest()
    }  # fmt: skip
    assert marks(planned(threat={"public": "both"}).scene.public) == marks(insider.public) | marks(outsider.public)


def test_an_insider_and_an_outsider_share_the_target_and_no_result(tmp_path: Path) -> None:
    outside, inside = audited(tmp_path), audited(tmp_path, threat={"public": "private"})
    assert [t.record.key for t in outside.targets] == [t.record.key for t in inside.targets]
    assert {r.key for r in outside.results}.isdisjoint(r.key for r in inside.results)
    assert outside.floors["nearest-public"]["mse"] != inside.floors["nearest-public"]["mse"]
    assert outside.threat.label == "all"


def test_separability_is_measured_on_raw_and_on_scaled_features(tmp_path: Path) -> None:
    plan, place = planned(), Workplace(Store(tmp_path), torch.device("cpu"))
    run_audits([plan], place, command="test")
    from leakscope.experiments.stages import train_target

    target = train_target(plan.scene, plan.targets[0], place)
    with torch.no_grad():
        z = target.split.encode(plan.scene.splits.heldout.images[:256]).flatten(1)
    unit = torch.pdist(z / z.norm(dim=1, keepdim=True))
    assert target.record.unit_separability is not None
    assert target.record.unit_separability.max == pytest.approx(float(unit.max()), rel=1e-4)
    assert target.record.unit_separability.mean == pytest.approx(float(unit.mean()), rel=1e-4)
    assert target.record.separability.mean == pytest.approx(separability(z).mean, rel=1e-4)


CLASSES: dict[str, Any] = {
    "data": "digits",
    "splits": {"private": 300, "heldout": 100, "public": 200},
    "model": "lenet5",
    "resize": 12,
    "victims": 3,
    "attacks": [{"kind": "gmi", "prior": {"kind": "linear", "components": 8}, "steps": 3, "images": 1}],
}


def test_a_class_attack_may_share_classes_when_the_threat_says_so() -> None:
    with pytest.raises(UsageError, match=r"threat\.shared_classes=true"):
        make_plan(AuditConfig.checked(CLASSES))
    plan = make_plan(AuditConfig.checked({**CLASSES, "threat": {"shared_classes": True}}))
    assert set(plan.scene.splits.public.labels.tolist()) == set(plan.scene.splits.private.labels.tolist())
    assert plan.scene.threat.shared_classes


@pytest.mark.parametrize("settings", [{"victims": {"from": "private"}}, {"threat": {"public": "private"}}])
def test_a_class_attack_has_no_use_for_the_private_pictures(settings: dict[str, Any]) -> None:
    shared = {"shared_classes": True, **settings.get("threat", {})}
    with pytest.raises(UsageError, match="nothing left to rebuild"):
        make_plan(AuditConfig.checked({**CLASSES, **settings, "threat": shared}))
