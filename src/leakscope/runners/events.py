"""A line of JSON for everything that happens in a grid, for machines and for later estimates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Not worth a line each.
_FLEETING = {"tick", "progress"}


class EventLog:
    """Appends to a file of its own in `<store>/events/`, so that coordinators never share one."""

    def __init__(self, store: Path, grid: str = "") -> None:
        self._grid = grid
        folder = store / "events"
        folder.mkdir(exist_ok=True)
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        self.path = folder / f"{now}-{os.uname().nodename}-{os.getpid()}.jsonl"

    def tell(self, event: str, facts: Mapping[str, Any]) -> None:
        if event in _FLEETING:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "grid": self._grid,
            **facts,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_events(store: Path) -> list[dict[str, Any]]:
    """Everything that was ever logged, file by file; a line that a crash cut short is skipped."""
    events = []
    for path in sorted((store / "events").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
    return events
