"""A folder of finished stages, addressed by the digest of what they are.

    <root>/VERSION                       format of the store
    <root>/entries/<kind>/ab/abcdef…/    record.json, tensors.safetensors, seal.json: one finished stage
    <root>/scratch/<kind>-<key>/         checkpoints of running stages
    <root>/locks/<kind>-<key>            held (flock) while a stage is computed; freed by any death
    <root>/incoming/                     entries being written
    <root>/damaged/                      entries that were not as they had been written; safe to delete
    <root>/index/<kind>.jsonl            a copy of the records' summaries for queries; can be rebuilt
    <root>/events/                       what happened when, for estimates of time

An entry appears by one `os.rename` of a complete folder, so a reader sees all of it or nothing, and
the first writer of a key wins. It is read only when its files hash to what its seal says (see `sealing`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.core import progress
from leakscope.core.durable import make_folders, replace_durably, sync
from leakscope.core.errors import UsageError
from leakscope.core.spec import digest
from leakscope.store import index
from leakscope.store.entry import RECORD, Entry, is_key, not_allowed, require_names, write_entry
from leakscope.store.incoming import sweep, writing
from leakscope.store.sealing import Damaged, secret

if TYPE_CHECKING:
    from torch import Tensor

#: 1: Leakscope 0.1. 2: entries are sealed.
VERSION = 2
_FOLDERS = ("entries", "scratch", "locks", "incoming")
#: Kinds that tell something of another entry, under its key.
_BESIDE = frozenset({"bound", "timing", "training", "ceiling"})


class Store:
    """Opens or creates the store at `root`."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        path = self.root / "VERSION"
        try:
            if not path.exists() and not _has_entries(self.root):
                make_folders(self.root)
                # Before any folder: who finds entries without a version has found an old store.
                replace_durably(path, f"{VERSION}\n".encode())
        except OSError as error:
            raise UsageError(
                f"cannot write to the store {self.root}: {error.strerror or error}; choose another with --store"
            ) from None
        self._require_version(path)
        for name in _FOLDERS:
            with suppress(OSError):  # a store that can only be read has what it has; writing will tell
                (self.root / name).mkdir(exist_ok=True)

    @classmethod
    def existing(cls, root: Path) -> Store:
        """Opens the store at `root`; where there is none, none is made."""
        if not (root / "VERSION").exists() and not _has_entries(root):
            raise UsageError(f"no store at {root}; give it with --store")
        return cls(root)

    def _require_version(self, path: Path) -> None:
        try:
            raw = path.read_bytes() if path.exists() else b"1"
        except OSError as error:
            raise not_allowed(self.root, error) from None
        if not re.fullmatch(rb"[0-9]{1,6}\n?", raw):
            raise UsageError(f"{path} is damaged ({raw[:20]!r}); if this Leakscope wrote it, write {VERSION} there")
        text = raw.decode().strip()
        if int(text) > VERSION:
            raise UsageError(
                f"the store {self.root} was written by a newer Leakscope (format {text}, this one reads {VERSION}); "
                "upgrade, or choose another with --store"
            )
        if int(text) < VERSION:
            raise UsageError(
                f"the store {self.root} was written by Leakscope 0.1 (format {text}), whose entries cannot be "
                "checked for damage; choose a new folder with --store, or delete this one"
            )

    def _folder(self, kind: str, key: str) -> Path:
        require_names(kind, key)
        return self.root / "entries" / kind / key[:2] / key

    def get(self, kind: str, key: str) -> Entry | None:
        """The entry, or None when there is none; one that is damaged is put aside with a word."""
        return self._read(kind, key, whole=False)

    def get_whole(self, kind: str, key: str) -> Entry | None:
        """As `get`, with the tensors looked at too."""
        return self._read(kind, key, whole=True)

    def get_content(self, kind: str, key: str) -> Entry | None:
        """As `get`, for kinds whose key is the digest of their record: any other record is refused.

        Such a record says what to run, so nobody but the one who knows the key may have written it.
        """
        entry = self.get(kind, key)
        if entry is not None and digest(entry.record) != key:
            raise UsageError(
                f"store entry {entry.folder} is not what its key says, so somebody changed it; "
                f"nothing of it was run: delete {entry.folder}, and find out who writes to {self.root}"
            )
        return entry

    def _read(self, kind: str, key: str, *, whole: bool) -> Entry | None:
        """An entry that is as it was written; with `whole` its tensors are looked at too."""
        entry = Entry(kind, key, self._folder(kind, key))
        try:
            os.stat(entry.folder)  # noqa: PTH116 (Path.exists hides what may not be looked at)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise not_allowed(entry.folder, error) from None
        try:
            _ = entry.record
            if whole:
                entry.require_whole()
        except Damaged as damage:
            if not entry.folder.exists():  # somebody put it aside in this moment
                return None
            self._put_aside(entry, damage)
            return None
        return entry

    def _put_aside(self, entry: Entry, damage: Damaged) -> None:
        place = self.root / "damaged" / f"{entry.kind}-{entry.key}-{uuid.uuid4().hex[:8]}"
        try:
            place.parent.mkdir(exist_ok=True)
            entry.folder.rename(place)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{damage}; it could not be put aside ({error.strerror})") from None
        moved = Entry(entry.kind, entry.key, place)
        with suppress(UsageError, OSError):
            moved.require_whole()
            place.rename(entry.folder)  # somebody had replaced it in this moment
            return
        progress.say(f"{damage.reason}; it is computed again (put aside in {place})")

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
        folder = self._folder(kind, key)
        try:
            with writing(self.root / "incoming") as incoming:
                write_entry(incoming, kind, key, record, tensors)
                make_folders(folder.parent)
                for _ in range(2):
                    try:
                        incoming.rename(folder)
                        sync(folder.parent)
                        break
                    except OSError as error:
                        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                            raise
                        if self._read(kind, key, whole=True) is not None:
                            break
        except PermissionError as error:
            raise not_allowed(self.root, error) from None
        shutil.rmtree(self.scratch(kind, key), ignore_errors=True)
        return Entry(kind, key, folder)

    def discard(self, kind: str, key: str) -> None:
        """Take an entry out (a failure about to be tried again); gone at once, whole."""
        trash = self.root / "incoming" / uuid.uuid4().hex
        with suppress(FileNotFoundError):
            self._folder(kind, key).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def sweep(self, seconds: float = 86_400) -> None:
        """Throw away what killed writers left in `incoming`: unchanged since an earlier sweep and `seconds` old."""
        sweep(self.root / "incoming", seconds)

    def scratch(self, kind: str, key: str) -> Path:
        """Where a running stage keeps its checkpoint; removed when the stage is finished."""
        require_names(kind, key)
        return self.root / "scratch" / f"{kind}-{key}"

    @contextmanager
    def claim(self, kind: str, key: str) -> Iterator[Entry | None]:
        """Hold the right to compute a stage; yields the entry when somebody finished it meanwhile.

        The lock is the operating system's: it is freed when its holder dies, however it dies.
        """
        done = self._read(kind, key, whole=True)
        if done is not None:  # entries never change, so reading one needs no lock
            yield done
            return
        handle = _open_lock(self.root / "locks" / f"{kind}-{key}")
        try:
            _lock(handle, self.root)
            yield self._read(kind, key, whole=True)
        finally:
            os.close(handle)

    def find(self, prefix: str, kinds: tuple[str, ...] | None = None) -> Entry:
        """The entry whose key starts with `prefix` (four digits at least), among these kinds."""
        if len(prefix) < 4 or not set(prefix) <= set("0123456789abcdef"):
            raise UsageError(f"{prefix!r} is not a key; give at least four of its hexadecimal digits")
        folders = [path for path in (self.root / "entries").glob(f"*/{prefix[:2]}/{prefix}*") if is_key(path.name)]
        if kinds is not None:
            folders = [folder for folder in folders if folder.parts[-3] in kinds]
        # A bound belongs to its target and bears its key: the target is meant.
        folders = [f for f in folders if f.parts[-3] not in _BESIDE or len({g.name for g in folders}) > 1] or folders
        if len(folders) > 1:
            raise UsageError(f"{len(folders)} entries start with {prefix!r}; give more digits")
        found = self.get(folders[0].parts[-3], folders[0].name) if folders else None
        if found is None:
            raise UsageError(f"no entry of {self.root} starts with {prefix!r}; keys are listed in audit.json")
        return found

    def kinds(self) -> list[str]:
        """The kinds that the store has entries of."""
        return sorted(path.name for path in (self.root / "entries").glob("*") if path.is_dir())

    def keys(self, kind: str) -> set[str]:
        """Keys of all finished stages of a kind, read from the folder itself."""
        require_names(kind, "0" * 24)
        found: set[str] = set()
        try:
            with os.scandir(self.root / "entries" / kind) as folders:
                for folder in folders:
                    if folder.is_dir():
                        found.update(name for name in os.listdir(folder) if is_key(name))  # noqa: PTH208
        except FileNotFoundError:
            return found
        except PermissionError as error:
            raise not_allowed(self.root / "entries" / kind, error) from None
        return found

    def summaries(self, kind: str) -> dict[str, dict[str, Any]]:
        """Summary of every entry of a kind, from the index, which is first brought up to date."""
        stamps = {key: stamp for key in self.keys(kind) if (stamp := self._stamp(kind, key))}
        path = self.root / "index" / f"{kind}.jsonl"
        return index.summaries(path, kind, stamps, lambda key: self._summary(kind, key), secret())

    def _stamp(self, kind: str, key: str) -> str:
        """Changes when a record is written anew; empty when there is none. Text and no paths: thousands of calls."""
        folder = f"{self.root}/entries/{kind}/{key[:2]}/{key}"
        try:
            state = os.stat(f"{folder}/{RECORD}")  # noqa: PTH116
        except OSError:
            return "unreadable" if os.path.exists(folder) else ""  # noqa: PTH110
        return f"{state.st_ino} {state.st_size} {state.st_mtime_ns}"

    def _summary(self, kind: str, key: str) -> dict[str, Any] | None:
        entry = self.get(kind, key)
        if entry is None:
            return None
        summary = entry.record.get("summary", {})
        return summary if isinstance(summary, dict) else {}


def _has_entries(root: Path) -> bool:
    entries = root / "entries"
    return entries.is_dir() and any(entries.iterdir())


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        try:  # another user's lock can still be held
            return os.open(path, os.O_RDONLY)
        except OSError:
            raise not_allowed(path.parent, error) from None


def _lock(handle: int, root: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
            raise
        raise UsageError(
            f"the disk of {root} has no locks ({error.strerror}); put the store on one that has, with --store"
        ) from None
