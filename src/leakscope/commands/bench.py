"""`leakscope bench` and `leakscope status`: grids to completion, and where they stand."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.commands.settings import print_json, require_count, say, settings_of
from leakscope.options import (
    RUN,
    AllowCode,
    DataRoot,
    Device,
    DryRun,
    Json,
    Quiet,
    Retry,
    RunnerName,
    Scale,
    Set,
    StorePath,
    option,
)

if TYPE_CHECKING:
    from leakscope.runners.bench import Bench
    from leakscope.runners.schedule import Schedule
    from leakscope.store import Store


def bench(
    grid: Annotated[Path, typer.Argument(help="A YAML grid: data × models × threats × defenses × attacks × seeds.")],
    data_root: DataRoot = None,
    scale: Scale = None,
    set_: Set = None,
    allow_code: AllowCode = False,
    runner: Annotated[RunnerName, option("--runner", help="Where jobs run.", panel=RUN)] = RunnerName.pool,
    workers: Annotated[
        int | None, option("--workers", help="Jobs at a time.  [one per core or GPU]", panel=RUN)
    ] = None,
    threads: Annotated[int, option("--threads", help="CPU threads of a job.", panel=RUN)] = 1,
    device: Device = "auto",
    ray_address: Annotated[
        str | None, option("--ray-address", help="A Ray cluster: auto, HOST:PORT.  [started here]", panel=RUN)
    ] = None,
    slurm: Annotated[
        list[str] | None, option("--slurm", help="For sbatch: partition=long, account=x; repeat.", panel=RUN)
    ] = None,
    retry: Annotated[Retry, option("--retry", help="Try again what failed before.", panel=RUN)] = Retry.nothing,
    track: Annotated[
        list[str] | None, option("--track", help="Also tell tensorboard or mlflow; repeat.", panel=RUN)
    ] = None,
    store: StorePath = Path("runs/store"),
    json_: Json = False,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> int:
    """Run a grid of audits to completion, on this machine or a cluster; the same command goes on where it was.

    Exit codes: 0 all done, 3 jobs failed, 4 stopped by its budget before the end.
    """
    from leakscope.runners.bench import plan_bench, run_bench
    from leakscope.runners.machine import Machine, usable_cores
    from leakscope.runners.status import describe_expectation, expectation
    from leakscope.store import Store

    require_count("--threads", threads)
    require_count("--workers", workers)
    kept = Store(store)
    typed = settings_of({"base.data_root": data_root and str(data_root)}, set_)
    planned = plan_bench(grid, typed, scale, kept, allow_code=allow_code)
    if dry_run:
        shown = expectation(planned, kept, workers or max(1, usable_cores() // threads))
        if json_:
            print_json(asdict(shown))
        else:
            say("\n".join(describe_expectation(shown)))
        return 0
    # Asked to end (a shutdown, a batch system): end the workers too, as for Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = Machine(runner, device, workers, threads, ray_address, settings_of({}, slurm))
    watchers = []
    if track:
        from leakscope.runners.trackers import tracker

        watchers = [tracker(kind, kept, planned.name) for kind in track]
    schedule = run_bench(planned, kept, machine, retry=retry is Retry.failed, quiet=quiet or json_, watchers=watchers)
    return _told(planned, schedule, kept, json_)


def _told(planned: Bench, schedule: Schedule, store: Store, as_json: bool) -> int:
    """What came of a grid, and its exit code."""
    from leakscope.runners.status import failures, strongest

    failed = failures(planned, schedule, store)
    if as_json:
        rows = [{"key": job.key, "state": schedule.states[job.id], **asdict(job.named)} for job in planned.of("attack")]
        wrong = [asdict(failure) for failure in failed]
        print_json({"grid": planned.key, "counts": schedule.counts, "failures": wrong, "results": rows})
    else:
        for line in strongest(planned, schedule, store):
            say(line)
        for failure in failed:
            say(f"failed: {failure.title}: {failure.error} (leakscope show {failure.key[:8]})")
        say(f"{planned.name}: {schedule.sentence}; store {store.root}")
    return 3 if failed else 0 if schedule.finished else 4


def status(store: StorePath = Path("runs/store"), json_: Json = False) -> int:
    """Show where every grid of a store stands: done, running, failed and why."""
    from leakscope.runners.live import print_status
    from leakscope.runners.status import store_status
    from leakscope.store import Store

    grids = store_status(Store.existing(store))
    if json_:
        print_json([asdict(grid) for grid in grids])
    else:
        print_status(grids)
    return 0
