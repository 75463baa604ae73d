"""Jobs one after another in this process: for debugging, and the truth other runners are held to."""

from __future__ import annotations

from pathlib import Path

import torch

from leakscope.core.spec import Plain
from leakscope.pipeline.jobs import Workshop
from leakscope.runners.doing import do, pin_threads
from leakscope.runners.runner import Outcome, Progress


class InProcess:
    """Runs a job when its outcome is waited for."""

    capacity = 1

    def __init__(self, store: Path, device: str, *, threads: int = 1) -> None:
        pin_threads(threads)
        self._workshop = Workshop(store, torch.device(device))
        self._todo: list[Plain] = []

    def submit(self, jobs: list[Plain]) -> None:
        self._todo += jobs

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        del seconds
        todo, self._todo = self._todo, []
        return [do(self._workshop, job, "here") for job in todo]

    def cancel(self, job: str) -> None:
        """Nothing can run here while the coordinator looks at the clock."""

    def close(self) -> None:
        self._todo.clear()
