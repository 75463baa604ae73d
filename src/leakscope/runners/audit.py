"""An audit: the stages of its plans go to a runner, and what they left in the store is folded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.core import progress
from leakscope.core.errors import UsageError
from leakscope.core.spec import digest
from leakscope.experiments.audit import Audit, fold, strongest_attacks
from leakscope.experiments.execution import Executor
from leakscope.experiments.job import Job, shared
from leakscope.experiments.jobs import check_jobs, plan_jobs, portable
from leakscope.experiments.plan import Plan
from leakscope.experiments.workplace import Workplace
from leakscope.runners.events import EventLog
from leakscope.runners.in_process import Directly
from leakscope.runners.pool import Pool
from leakscope.runners.runner import Runner
from leakscope.runners.schedule import Schedule, run_jobs


@dataclass(frozen=True)
class Labour:
    """Who does the work: this process, or so many workers."""

    workers: int | None = None
    threads: int = 1


def run_audits(
    plans: Sequence[Plan],
    place: Workplace,
    *,
    command: str,
    labour: Labour = Labour(),  # noqa: B008 (frozen)
) -> list[Audit]:
    """Run plans to their verdicts. Whatever the store already holds is not computed again."""
    started = time.monotonic()
    jobs = [job for plan in plans for job in plan_jobs(plan, facts=True)]
    run_all(plans, jobs, place, labour)
    wanting = [plan for plan in plans if plan.config.evidence == "E2"]
    checks = [job for plan in wanting for job in check_jobs(plan, strongest_attacks(plan, place.store))]
    if checks:
        run_all(plans, checks, place, labour)
    return [fold(plan, place.store, command=command, seconds=time.monotonic() - started) for plan in plans]


def run_all(plans: Sequence[Plan], jobs: Sequence[Job], place: Workplace, labour: Labour) -> None:
    """Run jobs of plans to the end; failures of earlier runs are tried again, and one of this run is an error."""
    jobs = shared(jobs)
    schedule = Schedule.of(jobs, place.store, retry=True)
    if schedule.finished:
        return
    runner = _runner(plans, place, labour)
    try:
        with progress.stage("jobs", len(jobs)) as bar:
            bar.advance(schedule.counts.get("done", 0))
            run_jobs(schedule, runner, place.store, [EventLog(place.store.root), _Shown(bar)])
    finally:
        runner.close()
    failed = [job for job in jobs if schedule.states[job.id] == "failed"]
    if failed:
        entry = place.store.get("failure", failed[0].key)
        why = entry.record["error"] if entry else "unknown"
        raise UsageError(
            f"{len(failed)} of {len(jobs)} jobs failed, the first: {failed[0].title}: {why}; "
            f"see `leakscope show {failed[0].key}`; the same command tries them again and keeps what is done"
        )


def _runner(plans: Sequence[Plan], place: Workplace, labour: Labour) -> Runner:
    if labour.workers is not None:
        return Pool(place.store.root, [str(place.device)], workers=labour.workers, threads=labour.threads)
    # Pictures and networks that are in memory already, and those that exist nowhere else, are used as they are.
    scenes = {digest(portable(plan.scene)): plan.scene for plan in plans}
    return Directly(Executor(place, scenes))


class _Shown:
    """Tells the terminal what starts and what is done."""

    def __init__(self, bar: progress.Bar) -> None:
        self._bar = bar

    def tell(self, event: str, facts: Mapping[str, Any]) -> None:
        if event == "start":
            progress.say(f"{facts['stage']}: {facts['title']}")
        elif event in {"done", "shared"}:
            self._bar.advance(1)
        elif event == "failed":
            progress.say(f"failed: {facts['title']}: {facts['error']}")
