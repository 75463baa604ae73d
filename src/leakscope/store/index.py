"""A copy of the records' summaries, one file for each kind; it may be lost, damaged or out of reach at any time.

A line counts only when its proof fits (its hash, or its HMAC when the store is signed) and the record has the time
stamp that the line was made from; every other line is made anew from the record. Of two who write at one time the
later wins, and what the other had made is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from leakscope.core import progress
from leakscope.core.durable import replace_durably
from leakscope.store.lines import proven, read_proven

Summary = dict[str, Any]
Rows = dict[str, tuple[str, Summary]]  # stamp and summary of each key


def summaries(
    path: Path,
    kind: str,
    stamps: Mapping[str, str],
    read: Callable[[str], Summary | None],
    key: bytes | None,
) -> dict[str, Summary]:
    """The summary of every entry in `stamps`: from the index at `path` where it is right, else by `read`."""
    known, wrong = _rows(path, kind, key)
    found: Rows = {}
    for name, stamp in sorted(stamps.items()):
        if name in known and known[name][0] == stamp:
            found[name] = known[name]
        elif (summary := read(name)) is not None:
            found[name] = (stamp, summary)
    if wrong:
        progress.say(f"the index {path} was damaged, or made under another key, and is rebuilt")
    if wrong or found != known:
        with suppress(OSError):  # the disk is full, read-only, or not ours: no fault of the index
            _write(path, kind, found, key)
    return {name: summary for name, (_, summary) in found.items()}


def _rows(path: Path, kind: str, key: bytes | None) -> tuple[Rows, bool]:
    """What the index says, and whether some of it cannot be believed."""
    try:
        lines = list(read_proven(path.read_bytes(), key))
    except OSError:
        return {}, False
    rows: Rows = {}
    for line in lines:
        match line:
            case {"kind": own, "key": str(name), "stamp": str(stamp), "summary": dict(summary)} if own == kind:
                rows[name] = (stamp, summary)
    return rows, len(rows) < len(lines)


def _write(path: Path, kind: str, rows: Rows, key: bytes | None) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = [
        proven({"kind": kind, "key": name, "stamp": stamp, "summary": summary}, key)
        for name, (stamp, summary) in rows.items()
    ]
    replace_durably(path, b"".join(lines))
