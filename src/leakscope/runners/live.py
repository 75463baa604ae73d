"""A grid's progress: a live table on a terminal, or a line every few seconds in a log."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from leakscope.core.escaping import terminal
from leakscope.runners.estimate import pace
from leakscope.runners.events import Event, Watcher
from leakscope.runners.guess import guessed
from leakscope.runners.schedule import Schedule

if TYPE_CHECKING:
    from leakscope.runners.status import GridStatus

STAGES = {
    "judge": "judges", "target": "targets", "prepare": "prepared", "attack": "results", "control": "controls",
    "check": "checks", "floors": "floors", "facts": "facts",
}  # fmt: skip
COLUMNS = ("done", "running", "waiting", "failed", "blocked")
_EVERY = 10.0


class Board:
    """Where a grid stands, how long it may still take, and what is running."""

    def __init__(self, schedule: Schedule, workers: int) -> None:
        self._schedule, self._workers = schedule, workers
        self._took: dict[str, list[float]] = defaultdict(list)
        self._running: dict[str, tuple[str, float]] = {}
        self._far: dict[str, str] = {}
        self._done: list[tuple[float, float]] = []  # what jobs took, and what was guessed

    def tell(self, event: Event) -> None:
        if event.event == "start":
            self._running[event.job] = (event.title, time.monotonic())
        elif event.event in {"done", "failed"}:
            self._running.pop(event.job, None)
            self._far.pop(event.job, None)
            if event.event == "done":
                self._took[event.stage].append(event.seconds)
                self._done.append((event.seconds, guessed(self._schedule.jobs[event.job])))
        elif event.event == "progress":
            self._far[event.job] = f"{event.stage} {event.done}/{event.total}"

    def seconds_left(self) -> float:
        """Estimated remaining work divided by the workers; unknown jobs are guessed, at the pace of finished ones."""
        left = 0.0
        rate = pace(self._done)
        now = time.monotonic()
        for job_id, state in self._schedule.states.items():
            if state not in {"waiting", "running"}:
                continue
            job = self._schedule.jobs[job_id]
            seen = self._took[job.stage]
            usual = sum(seen) / len(seen) if seen else rate * guessed(job)
            expected = self._schedule.expected.get(job_id, usual)
            spent = now - self._running[job_id][1] if job_id in self._running else 0.0
            left += max(expected - spent, 0.0)
        return left / self._workers

    def table(self) -> Table:
        counts = count_states(self._schedule.jobs.values(), self._schedule.states)
        return states_table(counts)

    def running(self) -> list[str]:
        now = time.monotonic()
        return [
            f"{now - since:5.0f} s  {title}" + (f"  ({self._far[job]})" if job in self._far else "")
            for job, (title, since) in self._running.items()
        ]

    def line(self) -> str:
        counts = self._schedule.counts
        shown = ", ".join(f"{counts[name]} {name}" for name in COLUMNS if counts.get(name))
        return f"{shown}; {duration(self.seconds_left())} left"


def count_states(jobs: Any, states: Mapping[str, str]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}
    for job in jobs:
        counts[job.stage][states[job.id]] += 1
    return {stage: states_ for stage, states_ in counts.items() if states_}


def states_table(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """How many jobs of every stage are in every state."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for stage, own in counts.items():
        table.add_row(STAGES[stage], *(str(own.get(column, 0) or "·") for column in COLUMNS))
    return table


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class _OnTerminal:
    def __init__(self, board: Board, live: Live) -> None:
        self._board, self._live = board, live

    def tell(self, event: Event) -> None:
        self._board.tell(event)
        if event.event == "failed":
            self._live.console.print(Text(terminal(f"failed: {event.title}: {event.error}"), style="red"))
        running = Text(terminal("\n".join(self._board.running())))
        left = Text(f"about {duration(self._board.seconds_left())} left")
        self._live.update(Group(self._board.table(), running, left))


class _InLog:
    def __init__(self, board: Board) -> None:
        self._board, self._last = board, time.monotonic()

    def tell(self, event: Event) -> None:
        self._board.tell(event)
        if event.event == "failed":
            sys.stderr.write(terminal(f"failed: {event.title}: {event.error}") + "\n")
        if time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            sys.stderr.write(self._board.line() + "\n")


@contextmanager
def watching(schedule: Schedule, workers: int, *, quiet: bool) -> Iterator[Sequence[Watcher]]:
    """The watchers that print progress on stderr; none when quiet."""
    if quiet:
        yield []
        return
    board = Board(schedule, workers)
    console = Console(stderr=True)
    if not console.is_terminal:
        yield [_InLog(board)]
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield [_OnTerminal(board, live)]


def print_status(grids: Sequence[GridStatus]) -> None:
    """Print the status of grids."""
    console = Console(highlight=False, soft_wrap=True)
    if not grids:
        console.print("no grid was ever run in this store; start one with `leakscope bench GRID.yaml`")
    for grid in grids:
        console.print(Text(terminal(f"{grid.grid}  {grid.key[:8]}  {grid.file}")))
        console.print(states_table(grid.states))
        for title in grid.running:
            console.print(Text(terminal(f"running: {title}")))
        for failure in grid.failures:
            told = f"failed: {failure.title}: {failure.error} (leakscope show {failure.key[:8]})"
            console.print(Text(terminal(told)))
