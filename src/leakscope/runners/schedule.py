"""The coordinator: which job may start, what became of it, and when the grid is finished.

It holds no result: every finished job is in the store before its outcome arrives here, so a coordinator
that dies loses nothing, and two on one store share the work.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Literal

from leakscope.core.spec import Plain
from leakscope.experiments.job import Job
from leakscope.runners.events import Event, Watcher
from leakscope.runners.runner import Outcome, Progress, Runner
from leakscope.store import Store

State = Literal["waiting", "running", "done", "failed", "blocked", "unneeded"]


@dataclass
class Schedule:
    """The jobs of a grid and where each stands."""

    jobs: dict[str, Job]
    states: dict[str, State]
    expected: Mapping[str, float] = field(default_factory=dict)  # seconds, where something is known
    _open: dict[str, int] = field(default_factory=dict)  # how many needs are not done yet
    _dependents: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _ready: list[tuple[float, int, str]] = field(default_factory=list)
    _order: dict[str, int] = field(default_factory=dict)  # among equals, in the order of the plan
    _ahead: dict[str, float] = field(default_factory=dict)  # seconds of the longest chain that a job begins

    @classmethod
    def of(
        cls, jobs: Sequence[Job], store: Store, expected: Mapping[str, float] | None = None, *, retry: bool = False
    ) -> Schedule:
        """Where every job stands by what the store holds; with `retry`, failures are forgotten."""
        kinds = {kind for job in jobs for kind, _ in job.makes}
        have = {kind: store.keys(kind) for kind in kinds}
        states: dict[str, State] = {
            job.id: "done" if all(key in have[kind] for kind, key in job.required) else "waiting" for job in jobs
        }
        answered = {job.id for job in jobs if all(key in have[kind] for kind, key in job.answers)}
        failed = store.keys("failure")
        for job in jobs:
            if job.key in failed and states[job.id] == "waiting":
                if retry:
                    store.discard("failure", job.key)
                else:
                    states[job.id] = "failed"
        schedule = cls({job.id: job for job in jobs}, states, expected or {})
        schedule._link(answered)
        return schedule

    def _link(self, answered: set[str]) -> None:
        for job in self.jobs.values():
            for need in job.needs:
                self._dependents[need].append(job.id)
        # A judge, weights, or what an attack learnt beforehand, are of no use once all that reads them is done.
        for job_id in reversed(self._sorted()):
            useless = all(self.states[other] in {"done", "unneeded"} for other in self._dependents[job_id])
            spared = job_id in answered or self.jobs[job_id].stage in {"judge", "prepare"}
            if spared and self.states[job_id] in {"waiting", "failed"} and useless:
                self.states[job_id] = "unneeded"
        for job in self.jobs.values():
            self._open[job.id] = sum(self.states[need] not in {"done", "unneeded"} for need in job.needs)
        for job_id in [name for name, state in self.states.items() if state == "failed"]:
            self._block(job_id)
        self._order = {job_id: number for number, job_id in enumerate(self.jobs)}
        for job_id in reversed(self._sorted()):
            chains = (self._ahead[other] for other in self._dependents[job_id])
            self._ahead[job_id] = self.expected.get(job_id, 0.0) + max(chains, default=0.0)
        for job_id in self.jobs:
            if self.states[job_id] == "waiting" and not self._open[job_id]:
                self._queue(job_id)

    def _sorted(self) -> list[str]:
        """Every job after all that it needs."""
        return list(TopologicalSorter({job.id: job.needs for job in self.jobs.values()}).static_order())

    def _queue(self, job_id: str) -> None:
        # Long chains first: one that starts last keeps one worker busy and all others idle.
        heapq.heappush(self._ready, (-self._ahead[job_id], self._order[job_id], job_id))

    def _block(self, job_id: str) -> list[str]:
        """Everything that needs a failed job cannot run."""
        blocked = []
        for other in self._dependents[job_id]:
            if self.states[other] == "waiting":
                self.states[other] = "blocked"
                blocked += [other, *self._block(other)]
        return blocked

    def next(self) -> Job | None:
        while self._ready:
            job_id = heapq.heappop(self._ready)[2]
            if self.states[job_id] == "waiting":
                return self.jobs[job_id]
        return None

    def finish(self, job_id: str) -> None:
        self.states[job_id] = "done"
        for other in self._dependents[job_id]:
            self._open[other] -= 1
            if not self._open[other] and self.states[other] == "waiting":
                self._queue(other)

    def fail(self, job_id: str) -> list[str]:
        self.states[job_id] = "failed"
        return self._block(job_id)

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.states.values()))

    @property
    def sentence(self) -> str:
        """`24 done, 2 failed, 3 blocked by those`."""
        counts = self.counts
        words = {"done": "done", "failed": "failed", "blocked": "blocked by those", "waiting": "left for another time"}
        return ", ".join(f"{counts[state]} {word}" for state, word in words.items() if state in counts)

    @property
    def finished(self) -> bool:
        return not any(state in {"waiting", "running"} for state in self.states.values())


@dataclass(frozen=True)
class Limits:
    """When to stop: no job starts after `until` (monotonic seconds), none runs longer than `job_seconds`."""

    until: float | None = None
    job_seconds: float | None = None


def run_jobs(
    schedule: Schedule, runner: Runner, store: Store, watchers: Sequence[Watcher] = (), limits: Limits | None = None
) -> dict[str, int]:
    """Run everything that can be run; returns how many jobs ended in each state.

    A failed job is recorded in the store, blocks those that need it, and nothing else.
    """
    return _Coordinator(schedule, runner, store, watchers, limits or Limits()).run()


class _Coordinator:
    def __init__(
        self, schedule: Schedule, runner: Runner, store: Store, watchers: Sequence[Watcher], limits: Limits
    ) -> None:
        self.schedule, self.runner, self.store, self.limits = schedule, runner, store, limits
        self._watchers = watchers
        self._running: dict[str, float] = {}

    def _tell(self, event: Event) -> None:
        for watcher in self._watchers:
            watcher.tell(event)

    def run(self) -> dict[str, int]:
        self._tell(Event("begin", counts=self.schedule.counts, workers=self.runner.capacity))
        while True:
            self._start()
            if not self._running:
                break
            for message in self.runner.wait(0.5):
                if isinstance(message, Progress):
                    self._tell(Event("progress", **vars(message)))
                elif message.job in self._running:
                    self._ended(message)
            self._stop_late()
            self._tell(Event("tick"))
        counts = self.schedule.counts
        self._tell(Event("end", counts=counts))
        return counts

    def _start(self) -> None:
        if self.limits.until is not None and time.monotonic() > self.limits.until:
            return
        starting: list[Plain] = []
        while len(self._running) < self.runner.capacity:
            job = self.schedule.next()
            if job is None:
                break
            # Another coordinator on this store may have done it meanwhile.
            if job.done(self.store):
                self.schedule.finish(job.id)
                self._tell(Event("shared", job=job.id))
                continue
            self.schedule.states[job.id] = "running"
            self._running[job.id] = time.monotonic()
            starting.append(job.as_json())
            self._tell(Event("start", job=job.id, stage=job.stage, title=job.title))
        if starting:
            self.runner.submit(starting)

    def _ended(self, outcome: Outcome) -> None:
        del self._running[outcome.job]
        job = self.schedule.jobs[outcome.job]
        event = Event(
            "done", job.id, job.stage, job.key, job.title, job.named, job.work, outcome.seconds, outcome.memory,
            outcome.worker, outcome.error or "",
        )  # fmt: skip
        # What is in the store is done, whatever became of the process that did it.
        if outcome.error is None or job.done(self.store):
            self.schedule.finish(job.id)
            self._tell(replace(event, error=""))
            return
        if outcome.errno is not None:
            # No job can be kept any more, and no failure be recorded: stop, with all that is finished intact.
            self._tell(replace(event, event="stopped"))
            raise OSError(outcome.errno, os.strerror(outcome.errno), str(self.store.root))
        summary = {"stage": job.stage, "title": job.title, "error": outcome.error}
        self.store.put("failure", job.key, {**vars(outcome), "plan": job.as_json(), "summary": summary})
        blocked = self.schedule.fail(job.id)
        self._tell(replace(event, event="failed", traceback=outcome.traceback, blocked=len(blocked)))

    def _stop_late(self) -> None:
        limit = self.limits.job_seconds
        if limit is None:
            return
        now = time.monotonic()
        for job_id, since in self._running.items():
            if now - since > limit:
                self.runner.cancel(job_id)
