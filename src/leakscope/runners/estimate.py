"""What a job will take, learnt from the events of finished ones."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from leakscope.experiments.job import Job, Named

Family = tuple[Any, ...]
#: A job that found everything done teaches nothing.
SHORTEST = 0.005


def families(stage: str, named: Named) -> list[Family]:
    """Groups of jobs like this one, the most alike first."""
    data, model, cut, attack = named.data, named.model, named.cut, named.attack
    if attack is None:
        return [(stage, data, model, named.defense), (stage, data, model), (stage, model), (stage,)]
    return [(stage, data, model, cut, attack), (stage, data, attack), (stage, attack), (stage, named.kind), (stage,)]


@dataclass(frozen=True)
class Estimate:
    """Seconds and peak bytes of a job; None where nothing alike was ever run."""

    seconds: float | None
    memory: int | None


class Experience:
    """Seconds for a unit of work, and memory, of every family of jobs seen so far."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        rates: dict[Family, list[float]] = defaultdict(list)
        memory: dict[Family, list[int]] = defaultdict(list)
        for event in events:
            if event.get("event") != "done" or "named" not in event or event["seconds"] < SHORTEST:
                continue
            for family in families(event["stage"], Named(**event["named"])):
                rates[family].append(event["seconds"] / max(event["work"], 1))
                if event.get("memory"):
                    memory[family].append(event["memory"])
        self._rate = {family: statistics.median(seen) for family, seen in rates.items()}
        self._memory = {family: max(seen) for family, seen in memory.items()}

    def of(self, job: Job) -> Estimate:
        """By the nearest family that was seen."""
        near = families(job.stage, job.named)
        rate = next((self._rate[family] for family in near if family in self._rate), None)
        memory = next((self._memory[family] for family in near if family in self._memory), None)
        return Estimate(None if rate is None else rate * max(job.work, 1), memory)

    def seconds(self, jobs: Iterable[Job]) -> dict[str, float]:
        """Expected seconds by job, where something is known."""
        found = ((job.id, self.of(job).seconds) for job in jobs)
        return {job_id: seconds for job_id, seconds in found if seconds is not None}
