"""An audit: the stages of its plans go to a runner, and what they left in the store is folded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from leakscope.core import progress
from leakscope.core.errors import RunFailed
from leakscope.core.spec import digest
from leakscope.experiments.audit import fold, strongest_attacks
from leakscope.experiments.execution import Executor
from leakscope.experiments.finished import Audit
from leakscope.experiments.job import Job, shared
from leakscope.experiments.jobs import check_jobs, plan_jobs, portable
from leakscope.experiments.plan import Plan
from leakscope.experiments.rescoring import Found
from leakscope.experiments.workplace import Workplace
from leakscope.runners.devices import shared_out
from leakscope.runners.estimate import Experience
from leakscope.runners.events import Event, EventLog, read_events
from leakscope.runners.in_process import Directly
from leakscope.runners.pool import Pool
from leakscope.runners.runner import Runner
from leakscope.runners.schedule import Schedule, run_jobs


@dataclass(frozen=True)
class Labour:
    """How the work is done: in this process, or by this many workers."""

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
    found = [Found.before(plan, place.store) for plan in plans]
    jobs = shared([job for plan in plans for job in plan_jobs(plan, facts=True)])
    wanting = [plan for plan in plans if plan.config.evidence == "E2"]
    # One line from the first training to the last check, so that what is left can be seen.
    with progress.stage("audit", len(jobs) + sum(len(plan.targets) for plan in wanting)) as bar:
        run_all(plans, jobs, place, labour, bar)
        provenances = [own.checked(place) for own in found]
        checks = [job for plan in wanting for job in check_jobs(plan, strongest_attacks(plan, place.store))]
        if checks:
            run_all(plans, checks, place, labour, bar)
    return [
        fold(plan, place.store, command=command, seconds=time.monotonic() - started, provenance=provenance)
        for plan, provenance in zip(plans, provenances, strict=True)
    ]


def run_all(
    plans: Sequence[Plan], jobs: Sequence[Job], place: Workplace, labour: Labour, bar: progress.Bar | None = None
) -> None:
    """Run all jobs of the plans. Jobs that failed in earlier runs are retried; a failure in this run is an error."""
    jobs = shared(jobs)
    # A single worker takes targets in the order of the plan, with what belongs to one still in its memory.
    expected = None if labour.workers is None else Experience(read_events(place.store.root)).seconds(jobs)
    schedule = Schedule.of(jobs, place.store, expected, retry=True)
    there = sum(schedule.counts.get(state, 0) for state in ("done", "unneeded"))
    if schedule.finished:
        if bar is not None:
            bar.advance(there)
        return
    runner = _runner(plans, place, labour)
    try:
        with nullcontext(bar) if bar is not None else progress.stage("jobs", len(jobs)) as shown:
            shown.advance(there)
            run_jobs(schedule, runner, place.store, [EventLog(place.store.root), _Shown(shown)])
    finally:
        runner.close()
    failed = [job for job in jobs if schedule.states[job.id] == "failed"]
    if failed:
        entry = place.store.get("failure", failed[0].key)
        why = entry.record["error"] if entry else "unknown"
        raise RunFailed(
            f"{len(failed)} of {len(jobs)} jobs failed, the first: {failed[0].title}: {why}; "
            f"see `leakscope show {failed[0].key}`; the same command tries them again and keeps what is done"
        )


def _runner(plans: Sequence[Plan], place: Workplace, labour: Labour) -> Runner:
    if labour.workers is not None:
        # `cuda` without a number is every GPU here: workers share them out, one each.
        devices = shared_out(str(place.device))
        return Pool(place.store.root, devices, workers=labour.workers, threads=labour.threads)
    # Pictures and networks that are in memory already, and those that exist nowhere else, are used as they are.
    scenes = {digest(portable(plan.scene)): plan.scene for plan in plans}
    return Directly(Executor(place, scenes))


class _Shown:
    """Tells the terminal what starts and what is done."""

    def __init__(self, bar: progress.Bar) -> None:
        self._bar = bar

    def tell(self, event: Event) -> None:
        if event.event == "start":
            progress.say(f"{event.stage}: {event.title}")
        elif event.event in {"done", "shared"}:
            self._bar.advance(1)
        elif event.event == "failed":
            progress.say(f"failed: {event.title}: {event.error}")
