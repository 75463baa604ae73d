"""Estimates of a job's time and memory, from the events of finished jobs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from leakscope.experiments.job import Job, Named
from leakscope.runners.events import Event
from leakscope.runners.guess import guessed, guessed_of

Family = tuple[Any, ...]
#: A job that found everything done teaches nothing.
SHORTEST = 0.005


def families(stage: str, named: Named) -> list[Family]:
    """Grouping keys of a job, most specific first."""
    data, model, cut, attack = named.data, named.model, named.cut, named.attack
    if attack is None:
        return [(stage, data, model, named.defense), (stage, data, model), (stage, model), (stage,)]
    return [(stage, data, model, cut, attack), (stage, data, attack), (stage, attack), (stage, named.kind), (stage,)]


@dataclass(frozen=True)
class Estimate:
    """Seconds and peak bytes of a job; `rough` if no similar job was ever run and the seconds are a guess."""

    seconds: float
    memory: int | None
    rough: bool = False


class Experience:
    """Seconds for a unit of work, and memory, of every family of jobs seen so far."""

    def __init__(self, events: Iterable[Event]) -> None:
        rates: dict[Family, list[float]] = defaultdict(list)
        memory: dict[Family, list[int]] = defaultdict(list)
        taken: list[tuple[float, float]] = []
        for event in events:
            if event.event != "done" or event.named is None or event.seconds < SHORTEST:
                continue
            taken.append((event.seconds, guessed_of(event.stage, event.named, event.work)))
            for family in families(event.stage, event.named):
                rates[family].append(event.seconds / max(event.work, 1))
                if event.memory:
                    memory[family].append(event.memory)
        self._rate = {family: statistics.median(seen) for family, seen in rates.items()}
        self._memory = {family: max(seen) for family, seen in memory.items()}
        #: How many times the guess jobs really took: what the first job teaches about all others.
        self.pace = pace(taken)

    def of(self, job: Job) -> Estimate:
        """From the most specific group that was seen."""
        near = families(job.stage, job.named)
        rate = next((self._rate[family] for family in near if family in self._rate), None)
        memory = next((self._memory[family] for family in near if family in self._memory), None)
        if rate is None:
            return Estimate(self.pace * guessed(job), memory, rough=True)
        return Estimate(rate * max(job.work, 1), memory)

    def seconds(self, jobs: Iterable[Job]) -> dict[str, float]:
        """Expected seconds by job, where something alike was run."""
        found = ((job.id, self.of(job)) for job in jobs)
        return {job_id: estimate.seconds for job_id, estimate in found if not estimate.rough}


def pace(taken: Iterable[tuple[float, float]]) -> float:
    """How many times their guess finished jobs took: all seconds over all guesses; 1 where none is finished."""
    both = list(taken)
    return sum(took for took, _ in both) / sum(guess for _, guess in both) if both else 1.0
