"""Power cuts, full and read-only disks, other users, killed writers and clocks that differ."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core import progress
from leakscope.core.errors import UsageError
from leakscope.store import Store

from .store_samples import KEY, OTHER, filled
from .test_store_integrity import Said


def names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir()))


def test_everything_is_on_the_disk_before_an_entry_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut drops what was not synced: at the rename, each file and the folder must have been."""
    store = Store(tmp_path / "store")
    synced: dict[int, bytes | tuple[str, ...]] = {}
    appeared: list[Path] = []
    usual_sync, usual_rename = os.fsync, os.rename

    def sync(handle: int) -> None:
        usual_sync(handle)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        inode = os.fstat(handle).st_ino
        synced[inode] = names(path) if path.is_dir() else path.read_bytes()

    def rename(source: Any, target: Any, **named: Any) -> None:
        folder = Path(source)
        if folder.is_dir():
            for file in folder.iterdir():
                assert synced.get(file.stat().st_ino) == file.read_bytes(), file
            assert synced.get(folder.stat().st_ino) == names(folder)
            appeared.append(Path(target))
        usual_rename(source, target, **named)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    store.put("result", KEY, {"summary": {}}, {"leak": torch.rand(4)})
    (entry,) = appeared
    for folder in (entry.parent, entry.parent.parent, store.root / "entries"):
        assert synced.get(folder.stat().st_ino) == names(folder), folder


def test_files_follow_the_umask(tmp_path: Path) -> None:
    """safetensors writes 0600, which keeps a colleague from reading a shared store."""
    before = os.umask(0o022)
    try:
        for mask, mode in ((0o022, 0o644), (0o002, 0o664), (0o077, 0o600)):
            os.umask(mask)
            store = filled(tmp_path / f"{mask:o}")
            files = [path for path in (store.root / "entries").rglob("*") if path.is_file()]
            assert len(files) == 10
            assert {path.stat().st_mode & 0o777 for path in files} == {mode}
    finally:
        os.umask(before)


@pytest.fixture
def stranger() -> Iterator[tuple[Path, Callable[[Callable[[], object]], str]]]:
    """A folder that all can reach, and a way to do something as another user; his error, or what he got."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)

    def ask(work: Callable[[], object]) -> str:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                said = f"got {work()!r}"
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(theirs, said.encode())
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        return said

    yield place, ask
    shutil.rmtree(place)


def test_what_another_user_may_not_read_is_not_missing(stranger: Any) -> None:
    place, ask = stranger
    store = filled(place / "store")
    assert ask(lambda: Store(store.root).summaries("result")) == f"got {{{KEY!r}: {{'leak': 0.97}}}}"
    entry = store.get("result", KEY)
    assert entry is not None
    (entry.folder / "record.json").chmod(0o600)
    said = ask(lambda: Store(store.root).get("result", KEY))
    assert said.startswith("UsageError: you may not use")
    assert "root" in said
    assert "umask" in said
    entry.folder.parent.chmod(0o700)
    assert ask(lambda: Store(store.root).get("result", KEY)).startswith("UsageError: you may not use")
    assert "umask 002" in ask(lambda: Store(store.root).put("result", "0" * 24, {}))
    assert store.get("result", KEY) is not None  # nothing was put aside


def test_users_of_one_group_share_a_store(stranger: Any) -> None:
    place, ask = stranger
    before = os.umask(0)
    try:
        store = filled(place / "store")
        with store.claim("bound", KEY):
            pass  # leaves a lock file that belongs to this user
        (store.root / "locks" / f"bound-{KEY}").chmod(0o644)

        def work() -> object:
            mine = Store(store.root)
            with mine.claim("bound", KEY) as done:
                assert done is None
                mine.put("bound", KEY, {"summary": {}}, {"x": torch.ones(1)})
            return mine.summaries("result")

        assert ask(work) == f"got {{{KEY!r}: {{'leak': 0.97}}}}"
    finally:
        os.umask(before)
    entry = store.get("bound", KEY)
    assert entry is not None
    assert entry.tensors()["x"].tolist() == [1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("index", ["none", "damaged", "old"])
def test_the_index_is_read_around_on_a_full_or_read_only_disk(small_disk: Path, index: str) -> None:
    store = filled(small_disk / "store")
    path = store.root / "index" / "result.jsonl"
    if index == "none":
        path.unlink()
    elif index == "damaged":
        path.write_bytes(b"x" * 5000)
    else:
        store.put("result", OTHER, {"summary": {"leak": 0.5}})
    expected = {KEY: {"leak": 0.97}, **({OTHER: {"leak": 0.5}} if index == "old" else {})}
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    assert store.summaries("result") == expected
    with pytest.raises(OSError, match="No space left"):
        store.put("result", "0" * 24, {"summary": {"text": "x" * 9000}})
    assert list((store.root / "incoming").glob("[0-9a-f]*")) == []
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    again = Store(store.root)
    assert again.summaries("result") == expected
    assert again.find(KEY[:8]).record["summary"] == {"leak": 0.97}
    with pytest.raises(OSError, match="ead-only"):
        again.put("result", "0" * 24, {})


class SweptMeanwhile(dict[str, torch.Tensor]):
    """Tensors of a writer that is slow: others sweep while it writes, and their clocks run two days ahead."""

    def __init__(self, store: Store) -> None:
        super().__init__(x=torch.ones(2))
        self.store = store

    def items(self) -> Any:
        past = time.time() - 2 * 86_400
        for path in (self.store.root / "incoming").glob("[0-9a-f]*"):
            for file in (*path.iterdir(), path):
                os.utime(file, (past, past))
        for _ in range(3):
            self.store.sweep()
        return super().items()


def test_a_sweep_leaves_a_living_writer_alone_whatever_the_clocks_say(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("result", KEY, {}, SweptMeanwhile(store))
    entry = store.get("result", KEY)
    assert entry is not None
    assert entry.tensors()["x"].tolist() == [1, 1]


def test_without_locks_a_folder_that_grows_is_left_alone(tmp_path: Path) -> None:
    """A writer on a node whose locks are not seen here: the sequence of its sizes tells that it lives."""
    store = Store(tmp_path)
    left = tmp_path / "incoming" / "abc"
    left.mkdir()
    past = time.time() - 2 * 86_400
    for number in range(4):
        (left / "tensors.safetensors").write_bytes(bytes(100 * (number + 1)))
        for file in (left / "tensors.safetensors", left):
            os.utime(file, (past, past))
        store.sweep()
        assert left.exists()
    store.sweep()  # nothing moved since the last look
    assert not left.exists()


def test_fresh_leftovers_wait(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "incoming" / "abc").mkdir()
    store.sweep()
    store.sweep()
    assert (tmp_path / "incoming" / "abc").exists()
    store.sweep(seconds=-1)
    assert not (tmp_path / "incoming" / "abc").exists()


@pytest.mark.parametrize("spoil", ["empty", "half", "flip", "pickle", "list"])
def test_a_damaged_checkpoint_is_thrown_away_with_one_line(tmp_path: Path, spoil: str) -> None:
    from leakscope.store import load_checkpoint, save_checkpoint

    path = tmp_path / "scratch" / "checkpoint.pt"
    assert load_checkpoint(path) is None
    weights = {"w": torch.rand(3)}
    state = {"epoch": 3, "split": weights, "history": [0.5, 0.25]}
    save_checkpoint(path, state)
    found = load_checkpoint(path)
    assert found is not None
    assert found["split"]["w"].equal(weights["w"])
    whole = path.read_bytes()
    if spoil == "pickle":
        save_checkpoint(path, {"trap": Trap(tmp_path / "mark")})
    elif spoil == "list":
        save_checkpoint(path, [1, 2])  # type: ignore[arg-type]
    elif spoil == "flip":
        path.write_bytes(whole[:700] + bytes([whole[700] ^ 4]) + whole[701:])
    else:
        path.write_bytes(b"" if spoil == "empty" else whole[: len(whole) // 2])
    said = Said()
    with progress.listening(said):
        assert load_checkpoint(path) is None
    (line,) = said.lines
    assert "begins again" in line
    assert "\n" not in line
    assert not path.exists()
    assert not (tmp_path / "mark").exists()


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_store_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--store"):
        Store(tmp_path / "file" / "store")


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_what_is_written_beside_a_store_ends_in_one_line_too(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Weights, exported folders, reconstructions and reports: of a write that failed nothing is left."""
    from leakscope.cli import app, run

    own = ["--data", "digits", "--model", "mlp", "--cut", "relu1", "--store", str(tmp_path / "store"), "--quiet"]
    target = Store(tmp_path / "store")
    assert run(app, ["train", *own, "--epochs", "0"]) == 0
    (key,) = target.keys("target")
    if how == "full":
        (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    before = names(small_disk)
    few = ["--epochs", "0", "--attack", "ridge", "--victims", "4"]
    for words in (
        ["train", *own, "--epochs", "0", "--save", str(small_disk / "w.safetensors")],
        ["export", key, "--store", str(tmp_path / "store"), "--out", str(small_disk / "exported")],
        ["attack", *own, *few, "--out", str(small_disk / "attack")],
        ["audit", *own, *few, "--out", str(small_disk / "audit")],
    ):
        capsys.readouterr()
        code = run(app, words)
        told = capsys.readouterr().err
        assert code in {2, 3}, told
        assert told.count("\n") == 1, told
        assert ("No space left" if how == "full" else "ead-only") in told
    assert {path.name for path in small_disk.rglob("*") if path.is_file()} <= set(before)


@pytest.mark.parametrize("number", [28, 30])
def test_what_safetensors_wraps_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    from safetensors import SafetensorError

    def fails(*given: Any) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: … (os error {number})")

    monkeypatch.setattr("safetensors.torch.save_file", fails)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        Store(tmp_path).put("result", KEY, {}, {"x": torch.ones(1)})
    assert caught.value.errno == number
