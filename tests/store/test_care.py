"""Looking after a store: sizes by kind, what may go, where it lies, and what it never keeps."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import leakscope
from leakscope.cli import app, run
from leakscope.core.checkpoint import save_checkpoint
from leakscope.store import Store

OLD, NEW, OTHER = "a" * 24, "b" * 24, "c" * 24
SMALL: dict[str, Any] = {
    "attacks": ["ridge"], "victims": 4, "metrics": ["leak"], "splits": {"private": 60, "heldout": 40, "public": 60},
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two large `prepared` entries, one forty days old, a small `result`, and the checkpoint of a killed run."""
    made = Store(tmp_path / "store")
    for key in (OLD, NEW):
        made.put("prepared", key, {}, {"matrix": torch.zeros(2**16)})
    made.put("result", OTHER, {})
    then = time.time() - 40 * 86_400
    (found,) = (made.root / "entries" / "prepared").glob(f"*/{OLD}")
    os.utime(found, (then, then))
    save_checkpoint(made.scratch("trained", OTHER) / "checkpoint.pt", {"epoch": 3})
    return made


def _told(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert run(app, ["store", *words]) == code
    shown = capsys.readouterr()
    return shown.out if code == 0 else shown.err


def test_size_is_told_by_kind(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--store", str(store.root)]
    found = {room["kind"]: room for room in json.loads(_told(capsys, 0, "size", "--json", *place))}
    assert {kind: room["entries"] for kind, room in found.items()} == {"prepared": 2, "result": 1, "scratch": 1}
    assert 2 * 2**18 < found["prepared"]["bytes"] < 2 * 2**18 + 20_000
    assert next(iter(found)) == "prepared", "the largest first"
    assert "all                4 entries" in _told(capsys, 0, "size", *place)


def test_entries_go_by_kind_and_age_and_nothing_else_does(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--store", str(store.root)]
    assert "say what may go" in _told(capsys, 2, "prune", *place)
    assert "holds no 'prepard'; it holds: prepared" in _told(capsys, 2, "prune", "--kind", "prepard", *place)
    aged = ["prune", "--kind", "prepared", "--older", "30", *place]
    assert "1 entries would go" in _told(capsys, 0, *aged, "--dry-run")
    assert store.keys("prepared") == {OLD, NEW}
    assert "1 entries gone, 0.3 MB free" in _told(capsys, 0, *aged)
    assert store.keys("prepared") == {NEW}
    assert "1 entries gone" in _told(capsys, 0, "prune", "--kind", "prepared", *place)
    assert (store.keys("prepared"), store.keys("result")) == (set(), {OTHER})


def test_checkpoints_that_nobody_needs_go_too(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prune", "--kind", "scratch", "--store", str(store.root)]
    with store.claim("trained", OTHER):
        assert "0 entries gone" in _told(capsys, 0, *words), "a run goes on from it"
    assert store.scratch("trained", OTHER).exists()
    assert "1 entries gone" in _told(capsys, 0, *words)
    assert not store.scratch("trained", OTHER).exists()
    assert store.keys("prepared") == {OLD, NEW}


def test_a_store_moves_when_nobody_works_in_it(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["move", str(tmp_path / "far" / "away"), "--store", str(store.root)]
    with store.claim("trained", OTHER):
        assert "somebody is working in" in _told(capsys, 2, *words)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in _told(capsys, 2, "move", str(tmp_path / "full"), "--store", str(store.root))
    assert "LEAKSCOPE_STORE" in _told(capsys, 0, *words)
    assert not store.root.exists()
    assert Store.existing(tmp_path / "far" / "away").keys("prepared") == {OLD, NEW}
    assert _told(capsys, 0, "verify", "--store", str(tmp_path / "far" / "away"))


def test_matrices_of_ridge_are_refitted_and_not_kept(tmp_path: Path) -> None:
    """They took 201 MB each, and fitting one takes seconds; the same reconstructions come back."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    first = leakscope.attack(net, "digits", cut="1", store=tmp_path, **SMALL)[0].result
    store = Store(tmp_path)
    assert "prepared" not in store.kinds()
    assert run(app, ["store", "prune", "--kind", "attack", "--kind", "result", "--store", str(tmp_path)]) == 0
    assert store.keys("attack") == store.keys("result") == set()
    assert leakscope.attack(net, "digits", cut="1", store=tmp_path, **SMALL)[0].result.metrics == first.metrics
