"""What an audit would take, told before: counts that must be right, and sizes that must be of the right order."""

from __future__ import annotations

import io
import json
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from leakscope.cli import app, run
from leakscope.core import progress
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import make_plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners import estimate
from leakscope.runners.audit import Labour, run_audits
from leakscope.runners.devices import chosen
from leakscope.runners.outlook import outlook
from leakscope.store import Store
from leakscope.store.care import rooms
from leakscope.terminal import _RichListener, following

SMALL = {
    "data": "digits", "attacks": ["ridge"], "victims": 8, "metrics": ["leak"], "cuts": ["features.2"],
    "training": {"epochs": 1}, "splits": {"private": 100, "heldout": 60, "public": 300},
}  # fmt: skip


class _Line:
    """Notes how long the outermost line was, and how far it got."""

    def __init__(self) -> None:
        self.total, self.done, self.depth = 0, 0, 0

    def stage(self, name: str, total: int) -> _Line:
        self.total = total if self.depth == 0 else self.total
        return self

    def __enter__(self) -> _Line:
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.done += steps if self.depth == 1 else 0

    def say(self, text: str) -> None:
        pass


def test_what_was_told_is_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SHORTEST", 0.0)  # a fast machine collects facts in less than teaches anything
    plan = make_plan(AuditConfig.checked(SMALL))
    told = outlook([plan], tmp_path / "none")
    assert not (tmp_path / "none").exists()
    store = Store(tmp_path / "store")
    line, started = _Line(), time.monotonic()
    with progress.listening(line):
        (audit,) = run_audits([plan], Workplace(store, chosen("cpu")), command="test")
    took = time.monotonic() - started
    assert (told.results, told.controls) == (len(audit.results), 1)
    assert line.total == line.done == told.jobs, "one line counts targets, results, controls and facts"
    assert 0.9 * took - 0.5 <= audit.report.seconds <= took
    written = sum(room.bytes for room in rooms(store))
    assert written / 10 < told.disk < 10 * written
    again = outlook([plan], tmp_path / "store")
    assert (again.done, again.cpu_seconds, again.disk) == (again.jobs, 0.0, 0)
    # What was run teaches what its like will take.
    other = outlook([make_plan(AuditConfig.checked({**SMALL, "seeds": [1]}))], tmp_path / "store")
    assert other.guessed == 0


def test_the_time_that_is_told_includes_that_of_workers(tmp_path: Path) -> None:
    """The page once told 11 s of a run of 105: what the process did that had waited for its workers."""
    plan = make_plan(AuditConfig.checked(SMALL))
    place, started = Workplace(Store(tmp_path), chosen("cpu")), time.monotonic()
    (audit,) = run_audits([plan], place, command="test", labour=Labour(workers=1))
    took = time.monotonic() - started
    assert 0.9 * took - 0.5 <= audit.report.seconds <= took


def test_the_checks_of_e2_are_counted() -> None:
    plan = make_plan(AuditConfig.checked({**SMALL, "evidence": "E2", "seeds": [0, 1, 2]}))
    told = outlook([plan], Path("/nowhere"))
    assert told.controls == 1 + 3


def test_a_dry_run_tells_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["audit", "--data", "digits", "--attack", "ridge", "--dry-run", "--store", str(tmp_path / "none")]
    assert run(app, words) == 0
    shown = capsys.readouterr().out
    for word in ("attacks    ridge", "results", "controls", "CPU time", "memory", "disk", "of one core"):
        assert word in shown
    assert run(app, [*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expected"]["results"] == 2


def test_a_terminal_shows_one_line() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(TextColumn("{task.description} {task.fields[figures]}"), console=console) as shown:
        listener = _RichListener(shown)
        with listener.stage("audit", 5) as bar, listener.stage("training", 9) as inner:
            inner.advance(2, loss=0.5)
            assert len(shown.tasks) == 1
            assert shown.tasks[0].fields["figures"] == "training 2/9  loss 0.5"
            bar.advance(1)
            assert shown.tasks[0].completed == 1
        assert not shown.tasks


def test_a_log_has_lines_of_the_whole_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 11))
    monkeypatch.setattr("leakscope.terminal.time.monotonic", lambda: float(next(now)))
    written = io.StringIO()
    with (
        redirect_stderr(written),
        following(quiet=False),
        progress.stage("audit", 2) as bar,
        progress.stage("inner", 3) as inner,
    ):
        inner.advance()
        bar.advance()
    assert "audit 1/2" in written.getvalue()
    assert "inner" not in written.getvalue()
