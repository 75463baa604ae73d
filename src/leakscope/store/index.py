"""A copy of the records' summaries in SQLite, for queries; it may be lost, damaged or out of reach at any time.

A row counts only when its proof fits (the hash of the row, or its HMAC when the store is signed) and the
record has the time stamp that the row was made from; every other row is made anew from the record.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from leakscope.core import progress
from leakscope.store.sealing import proof

_SCHEMA = """
create table if not exists summaries (
    kind text not null, key text not null, stamp text not null, summary text not null, proof text not null,
    primary key (kind, key)
) without rowid
"""
#: The disk is full, read-only, or not ours, or others are busy: no fault of the index.
_OUTSIDE = ("READONLY", "FULL", "CANTOPEN", "BUSY", "LOCKED", "IOERR", "PERM", "AUTH")
Row = tuple[str, str]  # stamp and summary


def summaries(
    path: Path,
    kind: str,
    stamps: Mapping[str, str],
    read: Callable[[str], dict[str, Any] | None],
    key: bytes | None,
) -> dict[str, dict[str, Any]]:
    """The summary of every entry in `stamps`: from the index at `path` where it is right, else by `read`."""
    known = _guarded(path, lambda: _rows(path, kind, key)) or {}
    fresh: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, stamp in sorted(stamps.items()):
        if name in known and known[name][0] == stamp:
            found[name] = json.loads(known[name][1])
        elif (summary := read(name)) is not None:
            found[name] = fresh[name] = summary
    gone = known.keys() - found.keys()
    if fresh or gone:
        rows = {name: (stamps[name], json.dumps(summary)) for name, summary in fresh.items()}
        _guarded(path, lambda: _write(path, kind, rows, gone, key))
    return found


def wrong_rows(path: Path, key: bytes | None) -> list[str]:
    """What is wrong with the index: one line each. A row that is out of date is no fault."""
    if not path.exists():
        return []
    try:
        with closing(_open(path)) as index:
            said = [str(line[0]) for line in index.execute("pragma integrity_check")]
            if said != ["ok"]:
                return [f"the index is damaged ({said[0][:120]}); delete it"]
            rows = index.execute("select kind, key, stamp, summary, proof from summaries").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [f"the index is unreadable ({error}); delete it"]
    return [
        f"the index was changed from outside at {str(row[0])[:40]}/{str(row[1])[:40]}; delete it"
        for row in rows
        if not _fits(row, key)
    ]


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=60, isolation_level=None)


def _guarded(path: Path, work: Callable[[], Any]) -> Any:
    """The result of `work`; a damaged index is thrown away and `work` done again, one out of reach is left out."""
    for attempt in range(2):
        try:
            return work()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            if attempt or any(word in name for word in _OUTSIDE):
                return None
            progress.say(f"the index {path} was damaged and is rebuilt")
            try:
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
            except OSError:
                return None
    return None


def _rows(path: Path, kind: str, key: bytes | None) -> dict[str, Row]:
    if not path.exists():
        return {}
    with closing(_open(path)) as index:
        found = index.execute("select kind, key, stamp, summary, proof from summaries where kind = ?", (kind,))
        return {row[1]: (row[2], row[3]) for row in found if _fits(row, key)}


def _fits(row: tuple[Any, ...], key: bytes | None) -> bool:
    return all(isinstance(item, str) for item in row) and _proof(row[:4], key) == row[4]


def _write(path: Path, kind: str, rows: Mapping[str, Row], gone: set[str], key: bytes | None) -> None:
    with closing(_open(path)) as index:
        index.execute(_SCHEMA)
        index.execute("begin immediate")
        index.executemany("delete from summaries where kind = ? and key = ?", [(kind, name) for name in gone])
        index.executemany(
            "insert or replace into summaries values (?, ?, ?, ?, ?)",
            [(kind, name, *row, _proof((kind, name, *row), key)) for name, row in rows.items()],
        )
        index.execute("commit")


def _proof(row: tuple[Any, ...], key: bytes | None) -> str:
    return proof(json.dumps(row).encode(), key)
