"""What a person sees in a terminal: bars while work is under way, tables when it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from leakscope.core import progress
from leakscope.core.escaping import terminal
from leakscope.core.reports import AuditReport
from leakscope.core.results import Finding, Summary
from leakscope.core.words import Verdict

_ERROR = Console(stderr=True)


class _RichBar:
    """The line itself; what is under way inside it is told behind it, in the same line."""

    def __init__(self, shown: Progress, task: TaskID) -> None:
        self._shown, self._task = shown, task

    def advance(self, steps: int = 1, **figures: float) -> None:
        self._shown.advance(self._task, steps)
        self._shown.update(self._task, figures=_written(figures))


class _RichNote:
    """A piece of work inside another."""

    def __init__(self, shown: Progress, task: TaskID, name: str, total: int) -> None:
        self._shown, self._task, self._name, self._total, self._done = shown, task, name, total, 0

    def advance(self, steps: int = 1, **figures: float) -> None:
        self._done += steps
        text = f"{self._name} {self._done}/{self._total}  {_written(figures)}"
        self._shown.update(self._task, figures=text.strip())


def _written(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in figures.items())


class _RichListener:
    """One bar on a terminal."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task: TaskID | None = None

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[progress.Bar]:
        if self._task is not None:
            yield _RichNote(self._shown, self._task, name, total)
            return
        self._task = self._shown.add_task(terminal(name), total=total, figures="")
        try:
            yield _RichBar(self._shown, self._task)
        finally:
            self._shown.remove_task(self._task)
            self._task = None

    def say(self, text: str) -> None:
        self._shown.console.print(Text(terminal(text)))


class _PlainBar:
    """A line now and then: what a log file wants."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0
        self._last = self._started = time.monotonic()

    def advance(self, steps: int = 1, **figures: float) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._last >= 10:
            self._last = now
            left = (now - self._started) * (self._total - self._done) / max(self._done, 1)
            text = " ".join(f"{name} {value:.3g}" for name, value in figures.items())
            sys.stderr.write(f"  {terminal(self._name)} {self._done}/{self._total} {text}, about {left:.0f} s left\n")


class _PlainListener:
    """Lines of the outermost work alone; what is inside says when it starts."""

    def __init__(self) -> None:
        self._depth = 0

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[progress.Bar]:
        self._depth += 1
        try:
            yield _PlainBar(name, total) if self._depth == 1 else progress.SILENT
        finally:
            self._depth -= 1

    def say(self, text: str) -> None:
        sys.stderr.write(terminal(text) + "\n")


@contextmanager
def following(*, quiet: bool) -> Iterator[None]:
    """Show progress on stderr: bars on a terminal, plain lines otherwise, nothing when quiet."""
    if quiet:
        yield
        return
    if not _ERROR.is_terminal:
        with progress.listening(_PlainListener()):
            yield
        return
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=_ERROR, transient=True) as shown, progress.listening(_RichListener(shown)):
        yield


def _interval(summary: Summary) -> str:
    return f"{summary.mean:.3f} [{summary.low:.3f}, {summary.high:.3f}]"


def print_scores(entries: Sequence[Finding]) -> None:
    """A table of results, most leaking first within each target."""
    table = Table(box=None, pad_edge=False)
    names = [name for name in entries[0].result.metrics if name != "leak"] if entries else []
    for column in ("defence", "cut", "attack", "seed", "accuracy", "leak [95 %]", "worst", *names, "flags"):
        side: Literal["left", "right"] = "left" if column in {"defence", "cut", "attack", "flags"} else "right"
        table.add_column(Text(terminal(column)), justify=side)
    for entry in sorted(entries, key=lambda e: (e.target.cut, e.target.defense.label, -e.result.leak)):
        target, result = entry.target, entry.result
        leak = result.metrics["leak"]
        accuracy = "" if target.accuracy is None else f"{target.accuracy:.3f}"
        words = (target.defense.label, target.cut, result.attack.label, str(result.seed), accuracy, _interval(leak))
        figures = (f"{leak.worst:.3f}", *(f"{result.metrics[name].mean:.3g}" for name in names))
        table.add_row(
            *(Text(terminal(word)) for word in (*words, *figures, ", ".join(flag.id for flag in result.flags)))
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow", Verdict.MEASURED: "blue"}


def print_audit(report: AuditReport, out: Path) -> None:
    """Scores, verdict, and where the report is."""
    print_scores([Finding(report.target(result.target).record, result) for result in report.results])
    console = Console(highlight=False, soft_wrap=True)
    for flag in report.flags:
        console.print(Text(terminal(f"flag: {flag.id} ({flag.where}): {flag.explanation}")))
    colour = _COLOURS[report.verdict]
    console.print(f"[bold {colour}]{report.verdict.upper()}[/] at evidence {report.evidence.level}", end=": ")
    console.print(Text(terminal(report.sentence)))
    told = {flag.reason for flag in report.flags}
    for reason in report.reasons:
        if reason in told:
            continue  # it stands above, explained
        console.print(Text(terminal(f"  doubt: {reason}")))
    console.print(Text(terminal(f"report: {out / 'report.html'}")))
    console.print(f"The audit took {report.seconds:.0f} s.", markup=False)


def print_cuts(found: list[Any]) -> None:
    """Every cut of a network."""
    table = Table(box=None, pad_edge=False)
    for column in ("cut", "layer", "features", "client's compute"):
        table.add_column(column, justify="right" if column == "client's compute" else "left")
    for cut in found:
        cells = (cut.name, cut.layer, "×".join(map(str, cut.shape)), f"{cut.compute:.1%}")
        table.add_row(*(Text(terminal(cell)) for cell in cells))
    Console().print(table)


def print_methods(kinds: dict[str, Any]) -> None:
    """Names with the first line of their documentation."""
    console = Console(highlight=False)
    for kind, table in kinds.items():
        console.print(f"[bold]{kind}[/]")
        listing = Table(box=None, show_header=False, pad_edge=False)
        for name in table:
            words = (table[name].__doc__ or "").strip().splitlines() or [""]
            listing.add_row(*(Text(terminal(cell)) for cell in ("  " + name, words[0])))
        console.print(listing)
