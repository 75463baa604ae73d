"""A folder of finished stages, addressed by the digest of what they are.

    <root>/VERSION                       format of the store
    <root>/entries/<kind>/ab/abcdef…/    record.json, tensors.safetensors: one finished stage
    <root>/scratch/<kind>-<key>/         checkpoints of running stages
    <root>/locks/<kind>-<key>            held (flock) while a stage is computed; freed by any death
    <root>/incoming/                     entries being written
    <root>/index.sqlite                  a copy of the records' summaries for queries; can be rebuilt

An entry appears by one `os.rename` of a complete folder, so a reader sees all of it or nothing, and
the first writer of a key wins.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
_SCHEMA = """
create table if not exists entries (
    kind text not null, key text not null, summary text not null, primary key (kind, key)
) without rowid
"""


@dataclass(frozen=True)
class Entry:
    """One finished stage."""

    kind: str
    key: str
    folder: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        path = self.folder / "record.json"
        try:
            record: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"store entry {path} is unreadable ({error}); delete {self.folder} to compute it again"
            ) from None
        return record

    def tensors(self) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / "tensors.safetensors"
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"store entry {path} is unreadable ({error}); delete {self.folder} to compute it again"
            ) from None
        return tensors


class Store:
    """Opens or creates the store at `root`."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        version = self.root / "VERSION"
        try:
            for name in ("entries", "scratch", "locks", "incoming"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            if not version.exists():
                _write_atomically(version, f"{VERSION}\n")
        except OSError as error:
            raise UsageError(
                f"cannot write to the store {self.root}: {error.strerror}; choose another with --store"
            ) from None
        text = version.read_text().strip()
        if not text.isdigit() or int(text) > VERSION:
            raise UsageError(
                f"the store {self.root} was written by a newer Leakscope (format {text}, this one reads {VERSION}); "
                "upgrade, or choose another with --store"
            )

    def _folder(self, kind: str, key: str) -> Path:
        return self.root / "entries" / kind / key[:2] / key

    def get(self, kind: str, key: str) -> Entry | None:
        folder = self._folder(kind, key)
        return Entry(kind, key, folder) if folder.is_dir() else None

    def put(
        self,
        kind: str,
        key: str,
        record: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
    ) -> Entry:
        """Keep a finished stage for good. The first writer of a key wins; later ones are dropped.

        `record["summary"]`, when present, is what `summaries` returns.
        """
        incoming = self.root / "incoming" / uuid.uuid4().hex
        folder = self._folder(kind, key)
        try:
            incoming.mkdir()
            if tensors is not None:
                from safetensors.torch import save_file

                plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
                save_file(plain, incoming / "tensors.safetensors")
            text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
            (incoming / "record.json").write_text(text)
            for path in incoming.iterdir():
                _sync(path)
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                incoming.rename(folder)
                _sync(folder.parent)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        shutil.rmtree(self.scratch(kind, key), ignore_errors=True)
        return Entry(kind, key, folder)

    def discard(self, kind: str, key: str) -> None:
        """Take an entry out (a failure about to be tried again); gone at once, whole."""
        trash = self.root / "incoming" / uuid.uuid4().hex
        with suppress(FileNotFoundError):
            self._folder(kind, key).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def sweep(self, seconds: float = 86_400) -> None:
        """Throw away what writers that were killed left in `incoming` more than `seconds` ago."""
        for left in (self.root / "incoming").iterdir():
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > seconds:
                    shutil.rmtree(left, ignore_errors=True)

    def scratch(self, kind: str, key: str) -> Path:
        """Where a running stage keeps its checkpoint; removed when the stage is finished."""
        return self.root / "scratch" / f"{kind}-{key}"

    @contextmanager
    def claim(self, kind: str, key: str) -> Iterator[Entry | None]:
        """Hold the right to compute a stage; yields the entry when somebody finished it meanwhile.

        The lock is the operating system's: it is freed when its holder dies, however it dies.
        """
        done = self.get(kind, key)
        if done is not None:  # entries never change, so reading one needs no lock
            yield done
            return
        path = self.root / "locks" / f"{kind}-{key}"
        with path.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield self.get(kind, key)

    def find(self, prefix: str, kinds: tuple[str, ...] | None = None) -> Entry:
        """The entry whose key starts with `prefix` (four digits at least), among these kinds."""
        if len(prefix) < 4 or not set(prefix) <= set("0123456789abcdef"):
            raise UsageError(f"{prefix!r} is not a key; give at least four of its hexadecimal digits")
        folders = list((self.root / "entries").glob(f"*/{prefix[:2]}/{prefix}*"))
        if kinds is not None:
            folders = [folder for folder in folders if folder.parts[-3] in kinds]
        # A bound belongs to its target and bears its key: the target is meant.
        folders = [f for f in folders if f.parts[-3] != "bound" or len({g.name for g in folders}) > 1] or folders
        if not folders:
            raise UsageError(f"no entry of {self.root} starts with {prefix!r}; keys are listed in audit.json")
        if len(folders) > 1:
            raise UsageError(f"{len(folders)} entries start with {prefix!r}; give more digits")
        return Entry(folders[0].parts[-3], folders[0].name, folders[0])

    def keys(self, kind: str) -> set[str]:
        """Keys of all finished stages of a kind, read from the folder itself."""
        return {folder.name for folder in (self.root / "entries" / kind).glob("*/*")}

    def summaries(self, kind: str) -> dict[str, dict[str, Any]]:
        """Summary of every entry of a kind, from the index, which is first brought up to date."""
        on_disk = self.keys(kind)
        with closing(sqlite3.connect(self.root / "index.sqlite", timeout=60, isolation_level=None)) as index:
            index.execute("pragma journal_mode = wal")
            index.execute(_SCHEMA)
            known = dict(index.execute("select key, summary from entries where kind = ?", (kind,)).fetchall())
            missing = {
                key: Entry(kind, key, self._folder(kind, key)).record.get("summary", {})
                for key in on_disk - known.keys()
            }
            index.execute("begin immediate")
            index.executemany(
                "delete from entries where kind = ? and key = ?", [(kind, k) for k in known.keys() - on_disk]
            )
            index.executemany(
                "insert or ignore into entries values (?, ?, ?)",
                [(kind, key, json.dumps(summary)) for key, summary in missing.items()],
            )
            index.execute("commit")
        return {key: missing[key] if key in missing else json.loads(known[key]) for key in sorted(on_disk)}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(text)
    temporary.replace(path)
