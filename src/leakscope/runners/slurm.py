"""Jobs on Slurm, as arrays, through submitit. The store must be on a disk all nodes share."""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from leakscope.core.durable import replace_durably
from leakscope.core.errors import UsageError
from leakscope.core.spec import Plain, validated
from leakscope.experiments.job import id_of
from leakscope.runners.devices import is_scheduled
from leakscope.runners.runner import Outcome, Progress

#: How often Slurm is asked about jobs that left no result: a query loads the controller of the whole cluster.
ASK_EVERY = 10.0
#: Slurm may take a moment to list a job, and a shared disk to show its result.
GRACE = 15.0
#: How the file ends in which a task tells what came of its jobs, and how long it may be.
OUTCOMES, LONGEST = "_outcomes.json", 1 << 26
#: Tasks of an array that run at a time, unless --workers says otherwise.
WIDTH = 256


@dataclass(frozen=True)
class Task:
    """What submitit sends to a node: plain strings and numbers."""

    store: str
    device: str
    threads: int

    def __call__(self, jobs: str) -> None:
        """Do jobs one after another; a start costs seconds, so that small ones share it.

        What came of them is written as JSON: submitit would pickle it, and unpickling can execute code.
        """
        import submitit

        from leakscope.experiments.execution import Executor
        from leakscope.experiments.workplace import Workplace
        from leakscope.runners.devices import chosen
        from leakscope.runners.outcome import do, pin_threads
        from leakscope.store import Store

        pin_threads(self.threads)
        executor = Executor(Workplace(Store(self.store), chosen(self.device)))
        worker = f"{os.uname().nodename}/slurm-{os.environ.get('SLURM_JOB_ID', os.getpid())}"
        outcomes = [asdict(do(executor, job, worker)) for job in json.loads(jobs)]
        here = submitit.JobEnvironment()
        replace_durably(here.paths.folder / f"{here.job_id}{OUTCOMES}", json.dumps(outcomes).encode())

    def checkpoint(self, jobs: str) -> Any:
        """Preempted, or out of time: queue again; what is done is skipped, training resumes at its last saved epoch."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, jobs)


class Slurm:
    """Every job that may start is handed over at once, as one array; Slurm decides where and when.

    `cluster="local"` runs them as processes of this machine instead, as submitit does for tests.
    """

    def __init__(
        self,
        store: Path,
        device: str,
        *,
        threads: int = 1,
        workers: int | None = None,
        minutes: float | None = None,
        memory_gb: float | None = None,
        options: Mapping[str, Any] | None = None,
        cluster: str = "slurm",
    ) -> None:
        try:
            import submitit
        except ImportError:
            raise UsageError(
                "submitit is not installed; pip install 'leakscope[slurm]', or take --runner pool"
            ) from None
        _require_one_line({"store": str(store.absolute()), **(options or {})})
        try:
            self._executor = submitit.AutoExecutor(folder=private_folder(store.absolute()) / "%j", cluster=cluster)
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"Slurm is not here ({error}); run this on a login node, or take --runner pool") from None
        self._here = cluster != "slurm"
        # Slurm refuses arrays above MaxArraySize, 1001 unless configured.
        self.capacity = (workers or os.cpu_count() or 1) if self._here else 1000
        parameters: dict[str, Any] = {
            "name": "leakscope",
            "cpus_per_task": threads,
            "timeout_min": int(minutes or 24 * 60),
            "slurm_array_parallelism": workers or WIDTH,
            **({} if memory_gb is None else {"mem_gb": memory_gb}),
            **({"gpus_per_node": 1} if is_scheduled(device) else {}),
        }
        try:
            self._executor.update_parameters(**parameters, **{f"slurm_{k}": v for k, v in (options or {}).items()})
        except (TypeError, ValueError, NameError) as error:
            raise UsageError(f"--slurm: {' '.join(str(error).split())[:300]}") from None
        self._task = Task(str(store.absolute()), device, threads)
        self._tasks = workers or (self.capacity if self._here else WIDTH)
        self._running: dict[Any, _Task] = {}
        self._asked = time.monotonic()

    def submit(self, jobs: list[Plain]) -> None:
        import submitit

        size = math.ceil(len(jobs) / self._tasks)
        parts = [jobs[start : start + size] for start in range(0, len(jobs), size)]
        try:
            started = self._executor.map_array(self._task, [json.dumps(part) for part in parts])
        except (submitit.core.utils.FailedJobError, OSError) as error:
            raise UsageError(f"Slurm refused the jobs: {' '.join(str(error).split())[:300]}") from None
        for part, handle in zip(parts, started, strict=True):
            self._running[handle] = _Task([id_of(job) for job in part], time.monotonic())

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        end = time.monotonic() + seconds
        while True:
            happened: list[Outcome | Progress] = []
            for handle in list(self._running):
                if _outcomes_file(handle).exists() or self._ended(handle):
                    happened += self._outcomes(handle)
            happened += self._lost()
            if happened or time.monotonic() > end:
                return happened
            time.sleep(0.05)

    def _ended(self, handle: Any) -> bool:
        """Whether it ended without an outcome file; on a shared disk that file may appear a little later."""
        if not (handle.paths.result_pickle.exists() or (self._here and handle.done())):
            return False
        task = self._running[handle]
        if task.ended is None:
            self._running[handle] = task = replace(task, ended=time.monotonic())
        return time.monotonic() - (task.ended or 0.0) > (0.5 if self._here else GRACE)

    def _outcomes(self, handle: Any, reason: str = "") -> list[Outcome]:
        task = self._running.pop(handle)
        found: dict[str, Outcome] = {}
        if not reason:
            try:
                found = read_outcomes(_outcomes_file(handle))
            except UsageError as error:
                reason = str(error)
        words = (handle.stderr() or "")[-4000:]
        seconds = round(time.monotonic() - task.since, 1)
        last = next((line for line in reversed(words.splitlines()) if line.strip()), "it wrote nothing")
        reason = reason or f"Slurm job {handle.job_id} left no result: {last.strip()[:200]}"
        lost = Outcome("", reason, words, seconds, worker=f"slurm-{handle.job_id}")
        return [found.get(job) or replace(lost, job=job) for job in task.jobs]

    def _lost(self) -> list[Outcome]:
        """Jobs that Slurm no longer has and that left no result: cancelled, out of memory, a dead node."""
        now = time.monotonic()
        if self._here or not self._running or now - self._asked < ASK_EVERY:
            return []
        self._asked = now
        known = _ask(["squeue", "--noheader", "--array", "--me", "--format=%i"])
        if known is None:  # the controller does not answer; jobs go on without it
            return []
        alive = set(known.split())
        gone: list[Outcome] = []
        for handle, task in list(self._running.items()):
            old = now - task.since > GRACE
            if old and handle.job_id not in alive and not _outcomes_file(handle).exists():
                gone += self._outcomes(handle, f"Slurm ended job {handle.job_id}: {_fate(handle.job_id)}")
        return gone

    def cancel(self, job: str) -> None:
        """Slurm keeps the time itself: `budgets.job_minutes` is the time limit of its jobs."""

    def close(self) -> None:
        for handle in self._running:
            handle.cancel(check=False)


@dataclass(frozen=True)
class _Task:
    """The jobs of one task of an array, and when it was handed over."""

    jobs: list[str]
    since: float
    ended: float | None = None  # when it was first seen to have ended


def _outcomes_file(handle: Any) -> Path:
    path: Path = handle.paths.folder / f"{handle.job_id}{OUTCOMES}"
    return path


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """What jobs say came of them, by their names; empty when the file is not there."""
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        outcomes = [validated(Outcome, plain, "outcome") for plain in json.loads(text)]
    except (ValueError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise UsageError(f"{path} is damaged ({' '.join(str(error).split())[:120]})") from None
    return {outcome.job: outcome for outcome in outcomes}


def private_folder(store: Path) -> Path:
    """A new folder for this run that no other user can read or replace, because submitit keeps pickles in it.

    Below the store when nobody else may write there; below the home folder when the store is shared. Both
    must be on a disk that the nodes see.
    """
    for place in (store / "slurm", Path.home() / ".leakscope" / "slurm"):
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            if all(_ours_alone(folder) for folder in (place, *place.resolve().parents)):
                folder = place / secrets.token_hex(8)
                folder.mkdir(mode=0o700)
                return folder
        except OSError:
            continue
    raise UsageError(
        f"others may write to {store} and to your home folder, where Slurm jobs keep code; "
        "run chmod go-w on one of them"
    )


def _ours_alone(folder: Path) -> bool:
    """Whether only this user and root can replace files in a folder."""
    state = folder.stat()
    shared = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not state.st_mode & stat.S_ISVTX
    return state.st_uid in {os.getuid(), 0} and not shared


def _require_one_line(texts: Mapping[str, Any]) -> None:
    """Paths and options become lines of a shell script and patterns of submitit's: no line may end inside one."""
    for name, value in texts.items():
        written = f"{name}={value}"
        if not written.isprintable():
            raise UsageError(f"Slurm cannot be given {written!r:.100}: it has a line break or another control sign")
        if name == "store" and "%" in written:
            raise UsageError(f"Slurm cannot be given {written!r:.100}: submitit replaces %; choose another --store")


def _ask(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None


def _fate(job_id: str) -> str:
    """Why a job ended, as long as the controller remembers it."""
    shown = _ask(["scontrol", "--oneliner", "show", "job", job_id]) or ""
    facts = dict(word.partition("=")[::2] for word in shown.split())
    state = facts.get("JobState", "it is not known any more")
    return f"{state} ({facts['Reason']})" if facts.get("Reason", "None") != "None" else state
