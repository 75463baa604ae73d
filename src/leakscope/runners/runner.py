"""What every runner promises: it takes jobs as plain JSON and tells, for each, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from leakscope.core.spec import Plain


@dataclass(frozen=True)
class Outcome:
    """How a job ended. What it made is in the store, not here."""

    job: str
    error: str | None = None  # one line; None: done
    traceback: str = ""
    seconds: float = 0.0
    memory: int | None = None  # peak bytes of the process
    worker: str = ""
    errno: int | None = None  # set when the store cannot be written: no other job can succeed either


@dataclass(frozen=True)
class Progress:
    """How far a running job has come."""

    job: str
    stage: str
    done: int
    total: int


class Runner(Protocol):
    """A place where jobs run. `capacity` is how many it takes at once."""

    capacity: int

    def submit(self, jobs: list[Plain]) -> None:
        """Start jobs; at most `capacity` are under way."""

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        """What happened since the last call; returns early when something does."""

    def cancel(self, job: str) -> None:
        """End a running job; its outcome says so."""

    def close(self) -> None:
        """End everything that still runs. What was finished is in the store."""
