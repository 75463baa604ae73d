"""Whole audits on an accelerator, from the public interface: the scores are the CPU's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import leakscope
from leakscope.cli import app, run
from leakscope.core.results import to_json
from leakscope.experiments.finished import Audit
from leakscope.testing import device

from .methods import DEVICE

PICTURES: dict[str, Any] = {
    "model": "convnet", "data": "digits", "cut": "features.2", "victims": 8, "training": {"epochs": 1},
    "attacks": ["ridge", "decoder:steps=20,capacity=small"],
    "defenses": ["none", "gaussian:sigma=0.5"],
}  # fmt: skip
CLASSES: dict[str, Any] = {
    "model": "convnet", "data": "toyfaces:identities=24,images=16,size=32,grey=true", "victims": 6,
    "splits": {"private": 0.2, "heldout": 0.1, "public": 0.7, "by_identity": True},
    "attacks": [{"kind": "gmi", "prior": {"kind": "linear", "components": 8}, "steps": 6, "images": 2}],
    "training": {"epochs": 1},
    "evaluator": {"model": {"kind": "lenet5"}, "training": {"epochs": 40, "learning_rate": 0.004}},
}  # fmt: skip


def rows(audit: Audit) -> list[Any]:
    return [to_json(result) for result in audit.results]


def scores(results: list[dict[str, Any]]) -> dict[str, float]:
    """Every mean of every metric of every result."""
    return {
        f"{number} {row['attack']} {name}": values["mean"]
        for number, row in enumerate(results)
        for name, values in row["metrics"].items()
    }


def check_same(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert found.keys() == wanted.keys()
    assert wanted
    for name in wanted:
        assert found[name] == pytest.approx(wanted[name], rel=5e-3, abs=5e-3), name


@pytest.mark.parametrize("settings", [PICTURES, CLASSES], ids=["pictures", "classes"])
def test_an_audit_scores_as_on_the_cpu(settings: dict[str, Any]) -> None:
    here = leakscope.audit(**settings, device="cpu")
    there = leakscope.audit(**settings, device=DEVICE)
    check_same(scores(rows(there)), scores(rows(here)))


def test_an_audit_needs_no_float64() -> None:
    settings = PICTURES | {"defenses": ["none"], "attacks": ["ridge", "auto:effort=quick"]}
    here = leakscope.audit(**settings, device="cpu")
    with device.without_float64():
        there = leakscope.audit(**settings, device=DEVICE)
    check_same(scores(rows(there)), scores(rows(here)))


def test_the_command_line_takes_the_device(tmp_path: Path) -> None:
    config = {"data": "digits", "model": "convnet", "cuts": ["features.2"], "victims": 8, "attacks": ["ridge"]}
    file = tmp_path / "audit.yaml"
    file.write_text(json.dumps(config | {"training": {"epochs": 1}}))  # JSON is YAML
    found = []
    for place in ("cpu", DEVICE):
        out = tmp_path / place.replace(":", "-")
        arguments = ["audit", str(file), "--device", place, "--store", str(out / "store"), "--out", str(out / "report")]
        assert run(app, arguments) == 0
        found.append(scores(json.loads((out / "report" / "audit.json").read_text())["results"]))
    check_same(found[1], found[0])
