"""Entries being written, and what writers that were killed left behind.

A writer holds a lock (flock) on its folder, which any death frees. Where a shared disk does not carry locks
from node to node, a folder is thrown away only when an earlier sweep saw it exactly as it is now: sizes and
stamps of its files serve as a sequence that grows while the writer lives. Clocks of nodes may differ, so ages
are told by the disk's own clock.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakscope.core.durable import replace_durably
from leakscope.store.lines import proven, read_proven

LOOKS = ".looks.jsonl"


@contextmanager
def writing(place: Path) -> Iterator[Path]:
    """A new folder in `place` for an entry; removed at the end unless it was renamed."""
    folder = place / uuid.uuid4().hex
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a disk without locks: the sequence is what tells
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def sweep(place: Path, seconds: float) -> None:
    """Throw away folders in `place` that nobody writes to: unlocked, unchanged since an earlier sweep, and old."""
    before, now = _looks(place), {}
    clock = _clock(place)
    if clock is None:  # nothing can be written here, so nothing can be thrown away either
        return
    for left in place.iterdir():
        if left.name.startswith("."):
            continue
        with suppress(OSError):
            newest, state = _state(left)
            if _alive(left):
                continue
            if before.get(left.name) == state and clock - newest > seconds * 1e9:
                shutil.rmtree(left, ignore_errors=True)
            else:
                now[left.name] = state
    if now != before:
        with suppress(OSError):
            replace_durably(place / LOOKS, proven({"looks": now}))


def _alive(folder: Path) -> bool:
    """Whether a process holds the folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _state(folder: Path) -> tuple[int, str]:
    """When it last changed by the disk's clock, and what it looks like."""
    files = [folder, *sorted(folder.iterdir())]
    stats = [(file.name, file.stat()) for file in files]
    newest = max(stat.st_mtime_ns for _, stat in stats)
    return newest, json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def _clock(place: Path) -> int | None:
    """The time that the disk gives to a new file."""
    probe = place / f".{uuid.uuid4().hex}"
    try:
        probe.touch()
        return probe.stat().st_mtime_ns
    except OSError:
        return None
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _looks(place: Path) -> dict[str, str]:
    try:
        (line,) = read_proven((place / LOOKS).read_bytes())
    except (OSError, ValueError):  # none, or somebody's own text
        return {}
    looks = {} if line is None else line.get("looks")
    return looks if isinstance(looks, dict) else {}
