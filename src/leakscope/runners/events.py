"""What happens in a grid: one type for everybody who follows it, and a line of JSON each for later estimates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

from leakscope.experiments.job import Named
from leakscope.store.lines import proven, read_proven

EventKind = Literal["begin", "start", "shared", "progress", "tick", "done", "failed", "stopped", "end"]
#: Not worth a line each.
_FLEETING = {"tick", "progress"}


@dataclass(frozen=True)
class Event:
    """Something that happened, and what is known of its job; fields that do not apply keep their defaults."""

    event: EventKind
    job: str = ""
    stage: str = ""
    key: str = ""
    title: str = ""
    named: Named | None = None
    work: float = 0.0
    seconds: float = 0.0
    memory: int | None = None  # peak bytes
    worker: str = ""
    error: str = ""
    traceback: str = ""
    blocked: int = 0  # how many jobs a failed one blocks
    done: int = 0
    total: int = 0
    counts: Mapping[str, int] | None = None
    workers: int = 0


_DEFAULTS = asdict(Event("tick"))
_NAMES = {field.name for field in fields(Event)}


class Watcher(Protocol):
    """Receives the events of a grid: a log, a table, a tracker."""

    def tell(self, event: Event) -> None: ...


class EventLog:
    """Appends to a file of its own in `<store>/events/`, so that coordinators never share one."""

    def __init__(self, store: Path, grid: str = "") -> None:
        self._grid = grid
        folder = store / "events"
        folder.mkdir(exist_ok=True)
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        self.path = folder / f"{now}-{os.uname().nodename}-{os.getpid()}.jsonl"

    def tell(self, event: Event) -> None:
        if event.event in _FLEETING:
            return
        said = {name: value for name, value in asdict(event).items() if value != _DEFAULTS[name]}
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self.path.open("ab", buffering=0) as file:  # in one piece: others read meanwhile
            file.write(proven({"time": time, "grid": self._grid, **said, "event": event.event}))


def read_log(path: Path) -> Iterator[Event]:
    """The events of one file; a line that a crash cut short, or that was changed since, is skipped."""
    for plain in read_proven(path.read_bytes()):
        if plain is None:
            continue
        named = plain.get("named")
        known = {name: value for name, value in plain.items() if name in _NAMES}
        with suppress(TypeError):  # of another version
            yield Event(**{**known, "named": None if named is None else Named(**named)})


def read_events(store: Path) -> list[Event]:
    """Everything that was ever logged, file by file."""
    return [event for path in sorted((store / "events").glob("*.jsonl")) for event in read_log(path)]
