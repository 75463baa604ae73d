"""The store is data, never code, and what is not as it was written is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from leakscope.core import progress
from leakscope.core.errors import UsageError
from leakscope.core.spec import digest
from leakscope.store import Store
from leakscope.store.lines import proven, read_proven

from .store_samples import GRID, KEY, OTHER, filled, flip, reseal, some_bits

SECRET = "0123456789abcdef0123456789abcdef"


class Said:
    """Listens to what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, name: str, total: int) -> Any:
        raise AssertionError("no stage here")

    def say(self, text: str) -> None:
        self.lines.append(text)


def refused(work: Any, *words: str) -> str:
    with pytest.raises(UsageError) as caught:
        work()
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text
    return text


def test_one_flipped_bit_in_any_file_is_noticed(tmp_path: Path) -> None:
    """With a log, a checkpoint, and what a sweep noted, a store has every sort of file."""
    from leakscope.runners.events import Event, EventLog
    from leakscope.store import save_checkpoint, verify

    store = filled(tmp_path / "store")
    save_checkpoint(store.scratch("trained", KEY) / "checkpoint.pt", {"epoch": 3, "weights": torch.rand(9)})
    log = EventLog(store.root)
    for event in (Event("start", job="a"), Event("done", job="a", seconds=2.5)):
        log.tell(event)
    (store.root / "incoming" / "abc").mkdir()
    store.sweep()
    assert list(verify(store)) == []
    files = sorted(path for path in store.root.rglob("*") if path.is_file())
    assert {path.name for path in files} == {
        "VERSION", "record.json", "tensors.safetensors", "seal.json", "checkpoint.pt", "result.jsonl", log.path.name,
        ".looks.jsonl",
    }  # fmt: skip
    for path in files:
        whole = path.read_bytes()
        for bit in some_bits(path, 16):
            flip(path, bit)
            try:
                noticed = [str(problem) for problem in verify(Store(store.root))]
            except UsageError as error:
                noticed = [str(error)]
            assert len(noticed) == 1, (path, bit, noticed)
            path.write_bytes(whole)
    assert list(verify(Store(store.root))) == []


def test_an_index_with_flipped_bits_never_tells_another_number(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = tmp_path / "index" / "result.jsonl"
    whole = path.read_bytes()
    for bit in some_bits(path, 60):
        flip(path, bit)
        assert store.summaries("result") == {KEY: {"leak": 0.97}}
        assert path.read_bytes() == whole


def test_a_log_with_flipped_bits_never_tells_another_number(tmp_path: Path) -> None:
    from leakscope.runners.events import Event, EventLog, read_log

    log = EventLog(Store(tmp_path).root)
    told = [Event("done", job="a", seconds=2.5), Event("done", job="b", seconds=1.5)]
    for event in told:
        log.tell(event)
    whole = log.path.read_bytes()
    for bit in some_bits(log.path, 60):
        flip(log.path, bit)
        assert set(read_log(log.path)) < set(told)
        log.path.write_bytes(whole)


@pytest.mark.parametrize("left", [b"", b"no index", b"{}\n", None])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, left: bytes | None) -> None:
    store = filled(tmp_path)
    path = tmp_path / "index" / "result.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-50] if left is None else left)
    said = Said()
    with progress.listening(said):
        assert store.summaries("result") == {KEY: {"leak": 0.97}}
    assert ["rebuilt" in line for line in said.lines] == ([] if left == b"" else [True])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", ["[" * 100_000, "[1]", '{"kind": "result", "key": 5}', '{"kind": "target"}'])
def test_a_line_with_a_proof_of_its_own_is_not_believed(tmp_path: Path, line: str) -> None:
    """What somebody writes who knows the format and may write to the store."""
    store = filled(tmp_path)
    own = f', "proof": "{hashlib.sha256((line[:-1] + "}").encode()).hexdigest()}"}}\n'
    (tmp_path / "index" / "result.jsonl").write_text(line[:-1] + own)
    assert store.summaries("result") == {KEY: {"leak": 0.97}}


def test_a_changed_line_of_the_index_is_not_believed(tmp_path: Path) -> None:
    from leakscope.store import verify

    store = filled(tmp_path)
    path = tmp_path / "index" / "result.jsonl"
    path.write_text(path.read_text().replace("0.97", "0.0"))
    assert ["1 of its lines changed" in problem.what for problem in verify(store)] == [True]
    assert store.summaries("result") == {KEY: {"leak": 0.97}}


def test_a_signed_index_cannot_be_changed_by_who_lacks_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_STORE_KEY", SECRET)
    store = filled(tmp_path)
    path = tmp_path / "index" / "result.jsonl"
    (line,) = read_proven(path.read_bytes(), SECRET.encode())
    assert line is not None
    path.write_bytes(proven({**line, "summary": {"leak": 0.0}}))
    assert store.summaries("result") == {KEY: {"leak": 0.97}}


def test_an_entry_computed_again_is_what_the_index_tells(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.discard("result", KEY)
    store.put("result", KEY, {"summary": {"leak": 0.5}})
    assert store.summaries("result") == {KEY: {"leak": 0.5}}


def test_eight_changed_floats_do_not_turn_fail_into_pass(tmp_path: Path) -> None:
    store = filled(tmp_path)
    entry = store.get("result", KEY)
    assert entry is not None
    path = entry.folder / "tensors.safetensors"
    scores = load_file(path)
    save_file({**scores, "leak": torch.zeros(8)}, path)
    refused(entry.tensors, "changed", f"delete {entry.folder}")
    with store.claim("result", KEY) as done:
        assert done is None  # to be computed again


@pytest.mark.parametrize("file", ["record.json", "tensors.safetensors", "seal.json"])
@pytest.mark.parametrize("spoil", ["empty", "half", "gone"])
def test_damage_is_put_aside_with_one_line(tmp_path: Path, file: str, spoil: str) -> None:
    store = filled(tmp_path)
    entry = store.get("result", KEY)
    assert entry is not None
    path = entry.folder / file
    whole = path.read_bytes()
    path.unlink() if spoil == "gone" else path.write_bytes(b"" if spoil == "empty" else whole[: len(whole) // 2])
    said = Said()
    with progress.listening(said):
        assert store.get("result", KEY) is None
    (line,) = said.lines
    assert "\n" not in line
    assert str(entry.folder) in line
    assert store.keys("result") == set()
    assert store.summaries("result") == {}
    store.put("result", KEY, {"summary": {"leak": 0.1}})
    assert store.summaries("result") == {KEY: {"leak": 0.1}}


def test_putting_over_a_damaged_entry_replaces_it(tmp_path: Path) -> None:
    store = filled(tmp_path)
    entry = store.get("result", KEY)
    assert entry is not None
    flip(entry.folder / "tensors.safetensors", 8 * 150)
    store.put("result", KEY, {"summary": {"leak": 0.2}}, {"leak": torch.ones(2)})
    again = store.get("result", KEY)
    assert again is not None
    assert again.tensors()["leak"].tolist() == [1, 1]


def test_an_entry_moved_to_another_key_or_kind_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path)
    entry = store.get("result", KEY)
    assert entry is not None
    entry.folder.rename(entry.folder.with_name(entry.key[:2] + "f" * 22))
    assert store.get("result", entry.key[:2] + "f" * 22) is None
    bound = tmp_path / "entries" / "bound" / OTHER[:2]
    bound.mkdir(parents=True)
    (tmp_path / "entries" / "target" / OTHER[:2] / OTHER).rename(bound / OTHER)
    assert store.get("bound", OTHER) is None


def test_a_tampered_grid_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    """The case of the issue: the record of a grid names a Python file, whose digest is not the grid's key."""
    from leakscope.store import verify

    store = filled(tmp_path)
    key = digest(GRID)
    entry = store.get_content("grid", key)
    assert entry is not None
    evil = {**GRID, "configs": {"x": {"audit": {"model": {"kind": "file", "path": "evil.py"}}}}}
    reseal(entry.folder, evil)
    refused(lambda: store.get_content("grid", key), "not what its key says", "delete")
    assert ["not what its key says" in problem.what for problem in verify(store)] == [True]
    assert store.get_content("grid", "0" * 24) is None


@pytest.mark.parametrize(
    ("kind", "key"),
    [("result", "../../../../etc/passwd"), ("result", "AB" * 12), ("result", "ab" * 11), ("result", KEY + "\n"),
     ("result", ""), ("../entries", KEY), ("Result", KEY), ("", KEY), ("a/b", KEY), ("result", 5), (".", KEY)],
)  # fmt: skip
def test_a_key_is_hexadecimal_and_a_kind_is_a_name(tmp_path: Path, kind: Any, key: Any) -> None:
    store = filled(tmp_path)
    refused(lambda: store.get(kind, key))
    refused(lambda: store.put(kind, key, {}))
    refused(lambda: store.scratch(kind, key))
    refused(lambda: store.claim(kind, key).__enter__())


def test_signed_entries_are_believed_and_others_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsigned = filled(tmp_path / "unsigned")
    monkeypatch.setenv("LEAKSCOPE_STORE_KEY", SECRET)
    refused(lambda: unsigned.get("result", KEY), "not signed", "unset")
    store = filled(tmp_path / "signed")
    entry = store.get("result", KEY)
    assert entry is not None
    assert entry.signed
    monkeypatch.setenv("LEAKSCOPE_STORE_KEY", SECRET[::-1])
    refused(lambda: Store(store.root).get("result", KEY), "another LEAKSCOPE_STORE_KEY")
    monkeypatch.delenv("LEAKSCOPE_STORE_KEY")
    assert store.get("result", KEY) is not None  # who has no key can still read


def test_a_signed_entry_cannot_be_changed_by_who_lacks_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_STORE_KEY", SECRET)
    store = filled(tmp_path)
    entry = store.get("result", KEY)
    assert entry is not None
    signature = json.loads((entry.folder / "seal.json").read_text())["signature"]
    reseal(entry.folder, {"summary": {"leak": 0.0}})
    refused(lambda: store.get("result", KEY), "not signed")
    refused(lambda: store.summaries("result"))

    from leakscope.store.sealing import Seal, sha256

    record = (entry.folder / "record.json").read_bytes()
    forged = Seal("result", KEY, sha256(record), None, 0, signature)
    (entry.folder / "tensors.safetensors").unlink()
    (entry.folder / "seal.json").write_bytes(forged.text())
    refused(lambda: store.get("result", KEY), "changed since")


def test_a_short_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKSCOPE_STORE_KEY", "abc")
    store = Store(tmp_path)
    refused(lambda: store.put("result", KEY, {}), "3 characters", "openssl")


@pytest.mark.parametrize("version", ["1\n", "0", None])
def test_a_store_of_the_first_version_is_refused_in_one_line(tmp_path: Path, version: str | None) -> None:
    filled(tmp_path)
    (tmp_path / "VERSION").unlink() if version is None else (tmp_path / "VERSION").write_text(version)
    refused(lambda: Store(tmp_path), "0.1", "--store")


def test_the_version_comes_before_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that make a store at one time must not take each other's half for an old store."""
    seen: list[list[str]] = []
    usual = Path.mkdir

    def watched(self: Path, *arguments: Any, **named: Any) -> None:
        if self.parent == tmp_path / "store":
            seen.append(sorted(path.name for path in self.parent.iterdir()))
        usual(self, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", watched)
    Store(tmp_path / "store")
    assert seen
    assert all("VERSION" in names for names in seen)


def test_verify_finds_strays_and_reads_tensors(tmp_path: Path) -> None:
    from leakscope.store import verify

    store = filled(tmp_path)
    entry = store.get("result", KEY)
    assert entry is not None
    (entry.folder / "extra.py").write_text("print('hello')")
    (tmp_path / "entries" / "notes.txt").write_text("mine")
    assert sorted(problem.path.name for problem in verify(store)) == ["extra.py", "notes.txt"]
    (entry.folder / "extra.py").unlink()
    (tmp_path / "entries" / "notes.txt").unlink()
    (entry.folder / "tensors.safetensors").write_bytes(b"\xff" * 64)
    reseal(entry.folder, {"summary": {"leak": 0.97}})  # its hashes fit, and still it is no file of tensors
    assert [problem.path for problem in verify(store)] == [entry.folder]
    (entry.folder / "record.json").write_text("[" * 100_000)
    assert [problem.path for problem in verify(store)] == [entry.folder]


def test_a_large_file_is_hashed_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import time

    from leakscope.store import sealing

    monkeypatch.setattr(sealing, "SMALL", 10)
    store = filled(tmp_path)
    entry = store.get("result", KEY)
    assert entry is not None
    path = entry.folder / "tensors.safetensors"
    os.utime(path, (time.time() - 60, time.time() - 60))
    counted: list[Any] = []
    usual = hashlib.file_digest

    def counting(*given: Any) -> Any:
        counted.append(1)
        return usual(*given)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    for _ in range(3):
        entry.tensors()
    assert len(counted) == 1
    flip(path, 8 * 150)
    os.utime(path, (time.time() - 60, time.time() - 60))  # its times put back: the disk's own stamp still tells
    refused(entry.tensors, "changed")


def test_the_command_names_what_is_damaged_and_moves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from leakscope.cli import app, run

    store = filled(tmp_path)
    assert run(app, ["store", "verify", "--store", str(tmp_path)]) == 0
    folder = next(
        path for path in sorted((tmp_path / "entries").glob("*/*/*")) if (path / "tensors.safetensors").exists()
    )
    content = bytearray((folder / "tensors.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "tensors.safetensors").write_bytes(bytes(content))
    capsys.readouterr()
    assert run(app, ["store", "verify", "--store", str(tmp_path)]) == 3
    assert folder.name in capsys.readouterr().out
    assert folder.exists()
    assert store.root == tmp_path
