"""Jobs one after another in this process: for one audit, for debugging, and the reference for other runners' tests."""

from __future__ import annotations

import time
from pathlib import Path

from leakscope.core.errors import ended_by
from leakscope.core.spec import Plain
from leakscope.experiments.execution import Executor
from leakscope.experiments.job import Job
from leakscope.experiments.workplace import Workplace
from leakscope.runners.devices import chosen
from leakscope.runners.outcome import do, pin_threads
from leakscope.runners.runner import Outcome, Progress
from leakscope.store import Store


class InProcess:
    """Runs a job when its outcome is waited for."""

    capacity = 1

    def __init__(self, store: Path, device: str, *, threads: int = 1) -> None:
        pin_threads(threads)
        self._executor = Executor(Workplace(Store(store), chosen(device)))
        self._todo: list[Plain] = []

    def submit(self, jobs: list[Plain]) -> None:
        self._todo += jobs

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        del seconds
        todo, self._todo = self._todo, []
        return [do(self._executor, job, "here") for job in todo]

    def cancel(self, job: str) -> None:
        """No-op: jobs run synchronously."""

    def close(self) -> None:
        self._todo.clear()


class Directly(InProcess):
    """In this process, using scenes already in memory; the first error is raised."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._todo = []

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        del seconds
        todo, self._todo = self._todo, []
        ended: list[Outcome | Progress] = []
        for plain in todo:
            job, started = Job.from_json(plain), time.monotonic()
            try:
                self._executor.run(job)
            except SystemExit as error:
                raise ended_by(error) from None
            ended.append(Outcome(job.id, seconds=round(time.monotonic() - started, 3), worker="here"))
        return ended
