"""Fill the store with everything that plans need, many jobs at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.core import progress
from leakscope.core.errors import UsageError
from leakscope.pipeline.execute import Workplace
from leakscope.pipeline.job import shared
from leakscope.pipeline.jobs import plan_jobs
from leakscope.pipeline.plan import Plan
from leakscope.runners.events import EventLog
from leakscope.runners.pool import Pool
from leakscope.runners.schedule import Schedule, run_jobs


def fill(plans: Sequence[Plan], place: Workplace, *, workers: int, threads: int) -> None:
    """Do the jobs of all plans in a pool; an audit that follows finds them done.

    Failures of earlier runs are tried again, and one of this run stops the audit after all other jobs.
    """
    jobs = shared(job for plan in plans for job in plan_jobs(plan))
    schedule = Schedule.of(jobs, place.store, retry=True)
    if schedule.finished:
        return
    pool = Pool(place.store.root, [str(place.device)], workers=workers, threads=threads)
    try:
        with progress.stage("jobs", len(jobs)) as bar:
            bar.advance(schedule.counts.get("done", 0))
            counts = run_jobs(schedule, pool, place.store, [EventLog(place.store.root), _Shown(bar)])
    finally:
        pool.close()
    if counts.get("failed"):
        failed = next(job for job in jobs if schedule.states[job.id] == "failed")
        entry = place.store.get("failure", failed.key)
        why = entry.record["error"] if entry else "unknown"
        raise UsageError(
            f"{counts['failed']} of {len(jobs)} jobs failed, the first: {failed.title}: {why}; "
            f"see `leakscope show {failed.key}`; the same command tries them again and keeps what is done"
        )


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
