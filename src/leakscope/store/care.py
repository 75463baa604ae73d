"""Looking after a store: what takes room, what may go, what is damaged, where it lies."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.errors import UsageError
from leakscope.store.directory import Store
from leakscope.store.entry import Entry


@dataclass(frozen=True)
class Room:
    """What the entries of one kind take."""

    kind: str
    entries: int
    bytes: int


def entries(store: Store, kinds: Collection[str] | None = None) -> Iterator[Entry]:
    """Every finished stage, kind by kind."""
    for kind in sorted(folder.name for folder in (store.root / "entries").iterdir()):
        if kinds is None or kind in kinds:
            for key in sorted(store.keys(kind)):
                found = store.get(kind, key)
                if found is not None:
                    yield found


def rooms(store: Store) -> list[Room]:
    """What each kind takes, the largest first; checkpoints of unfinished stages are `scratch`."""
    sizes: dict[str, list[int]] = {}
    for entry in entries(store):
        sizes.setdefault(entry.kind, []).append(_bytes(entry.folder))
    for name in ("scratch", "incoming"):
        left = [_bytes(item) for item in (store.root / name).iterdir()]
        if left:
            sizes[name] = left
    return sorted((Room(kind, len(own), sum(own)) for kind, own in sizes.items()), key=lambda room: -room.bytes)


def prunable(store: Store, kinds: Collection[str], days: float | None) -> list[Entry]:
    """Entries of these kinds (all, when none is named) that were written more than `days` ago."""
    there = {room.kind for room in rooms(store)}
    unknown = sorted(set(kinds) - there)
    if unknown:
        raise UsageError(f"the store holds no {unknown[0]!r}; it holds: {', '.join(sorted(there)) or 'nothing'}")
    return [entry for entry in entries(store, kinds or None) if _older(entry.folder, days)]


def abandoned(store: Store, kinds: Collection[str], days: float | None) -> list[Path]:
    """Checkpoints (`scratch`) of stages that nobody is computing now, under the same rules."""
    if kinds and "scratch" not in kinds:
        return []
    found = sorted((store.root / "scratch").iterdir())
    return [path for path in found if _older(path, days) and not _held(store.root / "locks" / path.name)]


def prune(store: Store, chosen: Sequence[Entry], checkpoints: Sequence[Path] = ()) -> int:
    """Take entries out; gives the bytes that became free. Whatever needs them later computes them again."""
    freed = 0
    for entry in chosen:
        freed += _bytes(entry.folder)
        store.discard(entry.kind, entry.key)
    for path in checkpoints:
        freed += _bytes(path)
        shutil.rmtree(path, ignore_errors=True)
    store.sweep()
    return freed


def move(store: Store, to: Path) -> None:
    """Take the whole store elsewhere, when nobody works in it."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} is not empty; name a new folder")
    for lock in (store.root / "locks").iterdir():
        if _held(lock):
            raise UsageError(f"somebody is working in {store.root} ({lock.name}); wait for the run to end")
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.exists():
        to.rmdir()
    try:
        shutil.move(store.root, to)
    except OSError as error:
        raise UsageError(f"cannot move the store to {to}: {error.strerror}; choose another folder") from None


def _older(path: Path, days: float | None) -> bool:
    return days is None or path.stat().st_mtime < time.time() - 86_400 * days


def _held(lock: Path) -> bool:
    """Whether a process holds the lock of a stage; also where that cannot be told."""
    try:
        with lock.open("r+") as handle:  # shared disks lock only what may be written
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    total = 0
    for file in path.rglob("*"):
        with suppress(FileNotFoundError):  # a run may end meanwhile
            total += file.stat().st_size if file.is_file() else 0
    return total
