"""Run one job and tell how it went: shared by all runners, in whatever process."""

from __future__ import annotations

import errno
import resource
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from leakscope.core import progress
from leakscope.core.errors import OneLine, ended_by, said_by
from leakscope.core.spec import Plain
from leakscope.experiments.execution import Executor
from leakscope.experiments.job import Job
from leakscope.runners.runner import Outcome, Progress


def pin_threads(threads: int) -> None:
    """Use `threads` cores: workers that each use every core slow each other down.

    Sums are rounded in an order that depends on the number of threads, so the same number everywhere
    is also what makes runners agree to the last digit.
    """
    torch.set_num_threads(threads)
    with suppress(RuntimeError):  # can be set once only
        torch.set_num_interop_threads(1)


def do(executor: Executor, plain: Plain, worker: str, tell: Callable[[Progress], None] | None = None) -> Outcome:
    """Do a job; whatever goes wrong in it becomes its outcome."""
    job = Job.from_json(plain)
    started = time.monotonic()
    _forget_peak()
    error, trace, number = None, "", None
    try:
        with progress.listening(_Teller(job.id, tell)):
            executor.run(job)
    except (Exception, SystemExit) as caught:
        problem = ended_by(caught) if isinstance(caught, SystemExit) else caught
        error = first_line(problem)
        trace = "" if isinstance(problem, OneLine) else traceback.format_exc()
        number = _store_problem(problem, executor.place.store.root)
    return Outcome(job.id, error, trace, round(time.monotonic() - started, 3), _peak(), worker, number)


def _store_problem(problem: Exception, root: Path) -> int | None:
    """The error number when the store's disk is the reason; libraries wrap it in errors of their own."""
    if isinstance(problem, OSError) and problem.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
        return problem.errno
    full = "No space left" in said_by(problem) or shutil.disk_usage(root).free < 2**18
    return errno.ENOSPC if full else None


def first_line(problem: BaseException) -> str:
    text = said_by(problem)
    if isinstance(problem, OneLine) or not text:
        return text or type(problem).__name__
    return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0]}"


def _forget_peak() -> None:
    """Start measuring peak memory anew (Linux; elsewhere the peak is that of the process's life)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int:
    """Most memory held since the last reset, in bytes; on a GPU, its memory."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class _Teller:
    """Sends the progress of a job's stages on, about once a second."""

    def __init__(self, job: str, tell: Callable[[Progress], None] | None) -> None:
        self._job, self._tell = job, tell

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[_TellingBar]:
        yield _TellingBar(self._job, name, total, self._tell)

    def say(self, text: str) -> None:
        pass


class _TellingBar:
    def __init__(self, job: str, name: str, total: int, tell: Callable[[Progress], None] | None) -> None:
        self._job, self._name, self._total, self._tell = job, name, total, tell
        self._done, self._last = 0, time.monotonic()

    def advance(self, steps: int = 1, **figures: float) -> None:
        self._done += steps
        if self._tell is not None and time.monotonic() - self._last >= 1:
            self._last = time.monotonic()
            self._tell(Progress(self._job, self._name, self._done, self._total))
