"""Looks at every file of a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leakscope.core.checkpoint import checkpoint_problem
from leakscope.core.errors import UsageError
from leakscope.core.spec import digest
from leakscope.store.directory import Store
from leakscope.store.entry import RECORD, TENSORS, Entry, require_names
from leakscope.store.incoming import LOOKS
from leakscope.store.lines import wrong_lines
from leakscope.store.sealing import SEAL, secret

#: Kinds whose key is the digest of their record.
CONTENT = frozenset({"grid"})


@dataclass(frozen=True)
class Problem:
    """Something that is not as it was written."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def verify(store: Store) -> Iterator[Problem]:
    """Everything that is wrong with the entries, checkpoints, index and logs of a store; changes nothing."""
    for folder in _folders(store.root / "entries"):
        problem = _entry_problem(folder, folder.parts[-3], folder.name)
        if problem is not None:
            yield Problem(folder, problem)
    for path in _strays(store.root / "entries"):
        yield Problem(path, "it is no part of an entry; delete it")
    for path in sorted((store.root / "scratch").glob("*/*")):
        said = checkpoint_problem(path)
        if said is not None:
            yield Problem(path, said)
    for path in sorted((store.root / "index").glob("*")):
        if (said := wrong_lines(path, secret())) is not None:
            yield Problem(path, f"{said}; delete the file, it is made again")
    for path in sorted([*(store.root / "events").glob("*"), *(store.root / "incoming").glob(LOOKS)]):
        if (said := wrong_lines(path)) is not None:
            yield Problem(path, f"{said}; delete the file, nothing but guesses are made from it")


def _folders(entries: Path) -> list[Path]:
    return sorted(path for path in entries.glob("*/*/*") if path.is_dir())


def _entry_problem(folder: Path, kind: str, key: str) -> str | None:
    """What is wrong with one entry."""
    try:
        require_names(kind, key)
        if folder.parent.name != key[:2]:
            return "it is in the folder of other keys; delete it"
        entry = Entry(kind, key, folder)
        entry.require_whole()
        if (folder / TENSORS).exists():
            entry.tensors()
    except UsageError as error:
        return str(error)
    except Exception as error:  # whatever a made-up file does to a reader
        return f"unreadable ({type(error).__name__}: {error}); delete {folder} to compute it again"
    if kind in CONTENT and digest(entry.record) != key:
        return f"its record is not what its key says; delete {folder}"
    return None


def _strays(entries: Path) -> list[Path]:
    """Files where there are none."""
    shallow = [path for pattern in ("*", "*/*", "*/*/*") for path in entries.glob(pattern) if not path.is_dir()]
    inside = [path for path in entries.glob("*/*/*/*") if path.name not in {RECORD, TENSORS, SEAL}]
    return sorted([*shallow, *inside])
