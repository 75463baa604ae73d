"""A gate believes no score that it finds in a store which is not signed: it computes it again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core.errors import RunFailed
from leakscope.core.reports import Provenance
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import Plan, make_plan
from leakscope.experiments.reading import read_result
from leakscope.experiments.workplace import Workplace
from leakscope.report import words
from leakscope.runners.audit import run_audits
from leakscope.store import Store

CONFIG = {
    "data": "digits", "model": "mlp:widths=[96]", "cuts": ["relu1"], "attacks": ["ridge"], "victims": 8,
    "metrics": ["leak", "mse"], "training": {"epochs": 0}, "splits": {"private": 100, "heldout": 40, "public": 200},
}  # fmt: skip


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Plan], Path]:
    """Plans with and without a gate, and a store in which all is done."""
    plans = {name: make_plan(AuditConfig.checked({**CONFIG, "gate": gate}))
             for name, gate in (("open", None), ("gated", "leak<=0.05"))}  # fmt: skip
    root = tmp_path_factory.mktemp("store")
    (audit,) = run_audits([plans["open"]], Workplace(Store(root), torch.device("cpu")), command="x")
    assert audit.report.provenance == Provenance(1, 0, rescored=False, signed=False)
    assert audit.report.results[0].leak > 0.2
    return plans, root


def copied(root: Path, to: Path) -> Store:
    import shutil

    shutil.copytree(root, to)
    return Store(to)


def run(plan: Plan, store: Store) -> Any:
    return run_audits([plan], Workplace(store, torch.device("cpu")), command="x")[0].report


def rewritten(store: Store, change: str) -> None:
    """What somebody who may write to the store and knows its format does to a result, hashes and all."""
    (key,) = store.keys("result")
    entry = store.get("result", key)
    assert entry is not None
    record, tensors = json.loads(json.dumps(entry.record)), entry.tensors()
    if change in {"floats", "both"}:
        tensors = {**tensors, "leak": tensors["leak"] * 0}
    if change in {"summary", "both"}:
        record["summary"]["metrics"]["leak"].update(mean=0.0, low=0.0, high=0.0, worst=0.0)
    if change == "flag":
        record["summary"]["mismatched"] = -5.0
    store.discard("result", key)
    store.put("result", key, record, tensors)


@pytest.mark.parametrize("change", ["floats", "summary", "both", "flag"])
def test_rewritten_scores_do_not_pass_a_gate(
    audited: tuple[dict[str, Plan], Path], tmp_path: Path, change: str
) -> None:
    plans, root = audited
    store = copied(root, tmp_path / "s")
    rewritten(store, change)
    with pytest.raises(RunFailed, match="somebody changed the store") as caught:
        run(plans["gated"], store)
    assert "\n" not in str(caught.value)


def test_honest_scores_are_the_same_again(audited: tuple[dict[str, Plan], Path], tmp_path: Path) -> None:
    plans, root = audited
    report = run(plans["gated"], copied(root, tmp_path / "s"))
    assert report.verdict == "fail"
    assert report.provenance == Provenance(1, 1, rescored=True, signed=False)
    assert "computed again" in words.provenance(report.provenance)


def test_what_is_signed_is_believed(
    audited: tuple[dict[str, Plan], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKSCOPE_STORE_KEY", "k" * 32)
    plans, _ = audited
    store = Store(tmp_path / "s")
    assert run(plans["gated"], store).provenance == Provenance(1, 0, rescored=False, signed=True)
    report = run(plans["gated"], store)
    assert report.provenance == Provenance(1, 1, rescored=False, signed=True)
    assert "signed with" in words.provenance(report.provenance)


def test_scores_without_their_reconstruction_are_computed_anew(
    audited: tuple[dict[str, Plan], Path], tmp_path: Path
) -> None:
    plans, root = audited
    store = copied(root, tmp_path / "s")
    (result,) = store.keys("result")
    key = read_result(store, result).reconstruction
    rewritten(store, "both")
    store.discard("attack", key)
    report = run(plans["gated"], store)
    assert report.verdict == "fail"
    assert report.provenance == Provenance(1, 0, rescored=False, signed=False)
    # A reconstruction that rotted is put aside, and made again.
    entry = store.get("attack", key)
    assert entry is not None
    tensors = entry.folder / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(bytes(content))
    assert replace(run(plans["gated"], store), seconds=0).verdict == "fail"
