"""`leakscope bench` and `leakscope status`: from a planned grid to finished jobs, and what is known meanwhile."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakscope.core.errors import UsageError
from leakscope.core.spec import Plain
from leakscope.runners.bench import Bench, read_bench
from leakscope.runners.estimate import Experience
from leakscope.runners.events import EventLog, read_events
from leakscope.runners.live import count_states, duration, watching
from leakscope.runners.runner import Runner
from leakscope.runners.schedule import Limits, Schedule, Watcher, run_jobs
from leakscope.store import Store


@dataclass(frozen=True)
class Machine:
    """Where to run, as the command line says it."""

    runner: str = "pool"
    device: str = "auto"
    workers: int | None = None
    threads: int = 1
    ray_address: str | None = None
    slurm: Mapping[str, Any] = field(default_factory=dict)


def _here(machine: Machine, store: Store, budgets: Plain) -> Runner:
    from leakscope.runners.in_process import InProcess

    del budgets
    return InProcess(store.root, _devices(machine.device)[0], threads=machine.threads)


def _pool(machine: Machine, store: Store, budgets: Plain) -> Runner:
    from leakscope.runners.pool import Pool

    devices = _devices(machine.device)
    wanted = machine.workers or (len(devices) if devices != ["cpu"] else usable_cores() // machine.threads)
    if budgets["memory_gb"] is not None:
        wanted = min(wanted, int(_memory() / budgets["memory_gb"] / 2**30))
    return Pool(store.root, devices, workers=max(1, wanted), threads=machine.threads)


def _ray(machine: Machine, store: Store, budgets: Plain) -> Runner:
    from leakscope.runners.ray_cluster import Ray

    return Ray(
        store.root, machine.device, address=machine.ray_address, workers=machine.workers, threads=machine.threads,
        memory_gb=budgets["memory_gb"],
    )  # fmt: skip


def _slurm(machine: Machine, store: Store, budgets: Plain) -> Runner:
    from leakscope.runners.slurm import Slurm

    options = dict(machine.slurm)
    return Slurm(
        store.root, "cpu" if machine.device in {"auto", "cpu"} else "cuda", threads=machine.threads,
        workers=machine.workers, minutes=budgets["job_minutes"], memory_gb=budgets["memory_gb"],
        cluster=options.pop("cluster", "slurm"), options=options,
    )  # fmt: skip


RUNNERS: dict[str, Callable[[Machine, Store, Plain], Runner]] = {
    "here": _here, "pool": _pool, "ray": _ray, "slurm": _slurm,
}  # fmt: skip


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _devices(name: str) -> list[str]:
    """The devices that workers share out among themselves: every GPU, or the CPU."""
    import torch

    if name in {"auto", "cuda"} and torch.cuda.device_count():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if name not in {"auto", "cpu"} and not torch.cuda.device_count():
        raise UsageError(f"device {name!r} cannot be used here; take --device cpu")
    return ["cpu"] if name == "auto" else [name]


def run_bench(
    bench: Bench, store: Store, machine: Machine, *, retry: bool, quiet: bool, watchers: Sequence[Watcher] = ()
) -> Schedule:
    """Run what is missing of a grid; afterwards the schedule tells where every job stands."""
    experience = Experience(read_events(store.root))
    schedule = Schedule.of(bench.jobs, store, experience.seconds(bench.jobs), retry=retry)
    if schedule.finished:
        return schedule
    if machine.runner not in RUNNERS:
        raise UsageError(f"unknown runner {machine.runner!r}; choose from: {', '.join(RUNNERS)}")
    budgets = bench.budgets
    limits = Limits(
        None if budgets["hours"] is None else time.monotonic() + 3600 * budgets["hours"],
        None if budgets["job_minutes"] is None else 60 * budgets["job_minutes"],
    )
    store.sweep()
    runner = RUNNERS[machine.runner](machine, store, budgets)
    try:
        with watching(schedule, runner.capacity, quiet=quiet) as shown:
            run_jobs(schedule, runner, store, [EventLog(store.root, bench.key), *shown, *watchers], limits)
    finally:
        runner.close()
    store.summaries("result")  # brings the index up to date, so that no leaderboard waits for it
    return schedule


def expectation(bench: Bench, store: Store, workers: int) -> dict[str, Any]:
    """What is there and what is to do, in jobs, seconds and bytes; None where nothing alike was ever run."""
    experience = Experience(read_events(store.root))
    schedule = Schedule.of(bench.jobs, store)
    todo = [job for job in bench.jobs if schedule.states[job.id] in {"waiting", "blocked", "failed"}]
    estimates = {job.id: experience.of(job) for job in todo}
    seconds = [estimate.seconds for estimate in estimates.values()]
    memory = [estimate.memory for estimate in estimates.values() if estimate.memory is not None]
    stages = {}
    for stage in dict.fromkeys(job.stage for job in bench.jobs):
        own = [job for job in todo if job.stage == stage]
        took = [estimates[job.id].seconds for job in own]
        stages[stage] = {
            "all": len(bench.of(stage)),
            "to_do": len(own),
            "seconds": None if None in took else round(sum(s for s in took if s is not None), 1),
        }
    trained = {key for job in bench.jobs for kind, key in job.makes if kind == "trained"}
    return {
        "grid": bench.name,
        "key": bench.key,
        "targets_to_train": len(trained - store.keys("trained")),
        "stages": stages,
        "failed": sum(state == "failed" for state in schedule.states.values()),
        "workers": workers,
        "seconds": None if None in seconds else round(sum(s for s in seconds if s is not None) / workers, 1),
        "jobs_never_seen": seconds.count(None),
        "memory_per_job": max(memory, default=None),
    }


def describe_expectation(shown: Mapping[str, Any]) -> list[str]:
    words = {
        "judge": "judges to train", "target": "targets to realise", "prepare": "attacks to prepare",
        "attack": "results to score", "control": "controls to run",
    }  # fmt: skip
    lines = [f"{'targets to train':20} {shown['targets_to_train']}"]
    for stage, own in shown["stages"].items():
        took = f", about {duration(own['seconds'])}" if own["to_do"] else ""
        lines.append(f"{words[stage]:20} {own['to_do']} of {own['all']}{took}")
    if shown["failed"]:
        lines.append(f"{'failed before':20} {shown['failed']} (run with --retry failed)")
    if shown["seconds"] is None:
        time_ = f"unknown: this store has not seen {shown['jobs_never_seen']} of these jobs, nor any like them"
    else:
        time_ = f"{duration(shown['seconds'])} on {shown['workers']} workers"
    memory = shown["memory_per_job"]
    lines.append(f"{'time':20} {time_}")
    lines.append(f"{'memory':20} " + ("unknown" if memory is None else f"{memory / 2**30:.1f} GB a worker"))
    return lines


def failures(bench: Bench, schedule: Schedule, store: Store) -> list[dict[str, Any]]:
    """Key, title and reason of every failed job."""
    found = []
    for job in bench.jobs:
        if schedule.states[job.id] == "failed":
            entry = store.get("failure", job.key)
            error = entry.record["error"] if entry else "unknown"
            found.append({"key": job.key, "title": job.title, "error": error})
    return found


def strongest(bench: Bench, schedule: Schedule, store: Store) -> list[str]:
    """For every kind of target the attack that rebuilds most, over seeds: a first look, not a leaderboard."""
    summaries = store.summaries("result")
    leaks: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for job in bench.of("attack"):
        measured = summaries.get(job.key, {}).get("metrics", {}).get("leak")
        if schedule.states[job.id] == "done" and measured is not None:
            target = tuple(str(job.row[name]) for name in ("data", "model", "cut", "threat", "defense"))
            leaks[target][job.row["attack"]].append(measured["mean"])
    lines = []
    for target, attacks in leaks.items():
        means = {attack: sum(values) / len(values) for attack, values in attacks.items()}
        best = max(means, key=lambda attack: means[attack])
        lines.append(f"leak {means[best]:7.3f}  {'  '.join(target)}  by {best} ({len(attacks[best])} seeds)")
    return lines


def store_status(store: Store) -> list[dict[str, Any]]:
    """Where every grid of a store stands."""
    running = _running(store)
    grids = []
    for key in sorted(store.keys("grid")):
        entry = store.get("grid", key)
        assert entry is not None
        bench = read_bench(key, entry.record)
        schedule = Schedule.of(bench.jobs, store)
        states = dict(schedule.states)
        for job in running:
            if states.get(job) == "waiting":
                states[job] = "running"
        grids.append(
            {
                "grid": bench.name,
                "key": key,
                "file": entry.record["summary"]["file"],
                "states": {stage: dict(own) for stage, own in count_states(bench.jobs, states).items()},
                "running": [schedule.jobs[job].title for job in running if job in schedule.jobs],
                "failures": failures(bench, schedule, store),
            }
        )
    return grids


def _running(store: Store) -> list[str]:
    """Jobs that live coordinators of this machine have started and not seen the end of."""
    open_jobs: Counter[str] = Counter()
    for path in sorted((store.root / "events").glob("*.jsonl")):
        host, _, process = path.stem.partition("-")[2].rpartition("-")
        if host == os.uname().nodename and not os.path.exists(f"/proc/{process}"):  # noqa: PTH110
            continue
        for line in path.read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == "start":
                open_jobs[event["job"]] += 1
            elif event["event"] in {"done", "failed"}:
                open_jobs[event["job"]] -= 1
            elif event["event"] in {"end", "stopped"}:
                open_jobs.clear()
    return [job for job, count in open_jobs.items() if count > 0]
