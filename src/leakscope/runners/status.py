"""The status of a grid: open jobs, states, failures and first results."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leakscope.experiments.reading import read_entries
from leakscope.runners.bench import Bench, read_bench
from leakscope.runners.estimate import Experience
from leakscope.runners.events import read_events, read_log
from leakscope.runners.live import count_states, duration
from leakscope.runners.schedule import Schedule
from leakscope.store import Store


@dataclass(frozen=True)
class StageExpectation:
    all: int
    to_do: int
    seconds: float


@dataclass(frozen=True)
class Expectation:
    """What is there and what is to do, in jobs, seconds and bytes."""

    grid: str
    key: str
    targets_to_train: int
    stages: Mapping[str, StageExpectation]
    failed: int
    workers: int
    seconds: float
    jobs_never_seen: int  # whose seconds are guessed
    memory_per_job: int | None


@dataclass(frozen=True)
class Failure:
    key: str
    title: str
    error: str


@dataclass(frozen=True)
class GridStatus:
    """Where one grid of a store stands."""

    grid: str
    key: str
    file: str
    states: Mapping[str, Mapping[str, int]]
    running: list[str]
    failures: list[Failure]


def expectation(bench: Bench, store: Store, workers: int) -> Expectation:
    experience = Experience(read_events(store.root))
    schedule = Schedule.of(bench.jobs, store)
    todo = [job for job in bench.jobs if schedule.states[job.id] in {"waiting", "blocked", "failed"}]
    estimates = {job.id: experience.of(job) for job in todo}
    memory = [estimate.memory for estimate in estimates.values() if estimate.memory is not None]
    stages: dict[str, StageExpectation] = {}
    for stage in dict.fromkeys(job.stage for job in bench.jobs):
        own = [job for job in todo if job.stage == stage]
        stages[stage] = StageExpectation(len(bench.of(stage)), len(own), _total(estimates[j.id].seconds for j in own))
    trained = {key for job in todo for kind, key in job.makes if kind == "trained"}
    total = _total(estimate.seconds for estimate in estimates.values())
    return Expectation(
        grid=bench.name,
        key=bench.key,
        targets_to_train=len(trained - store.keys("trained")),
        stages=stages,
        failed=sum(state == "failed" for state in schedule.states.values()),
        workers=workers,
        seconds=round(total / workers, 1),
        jobs_never_seen=sum(estimate.rough for estimate in estimates.values()),
        memory_per_job=max(memory, default=None),
    )


def _total(seconds: Iterable[float]) -> float:
    return round(sum(seconds), 1)


_WORDS = {
    "judge": "judges to train", "target": "targets to realise", "prepare": "attacks to prepare",
    "attack": "results to score", "control": "controls to run", "check": "checks to run",
    "floors": "floors to measure", "facts": "targets to describe",
}  # fmt: skip


def describe_expectation(shown: Expectation) -> list[str]:
    lines = [f"{'targets to train':20} {shown.targets_to_train}"]
    for stage, own in shown.stages.items():
        took = f", about {duration(own.seconds)}" if own.to_do else ""
        lines.append(f"{_WORDS[stage]:20} {own.to_do} of {own.all}{took}")
    if shown.failed:
        lines.append(f"{'failed before':20} {shown.failed} (run with --retry failed)")
    time_ = f"{duration(shown.seconds)} on {shown.workers} workers"
    if shown.jobs_never_seen:
        time_ += f" (a guess: this store has not seen {shown.jobs_never_seen} of these jobs, nor any like them)"
    memory = shown.memory_per_job
    lines.append(f"{'time':20} {time_}")
    lines.append(f"{'memory':20} " + ("unknown" if memory is None else f"{memory / 2**30:.1f} GB per worker"))
    return lines


def failures(bench: Bench, schedule: Schedule, store: Store) -> list[Failure]:
    """Key, title and reason of every failed job."""
    found = []
    for job in bench.jobs:
        if schedule.states[job.id] == "failed":
            entry = store.get("failure", job.key)
            found.append(Failure(job.key, job.title, entry.record["error"] if entry else "unknown"))
    return found


def strongest(bench: Bench, schedule: Schedule, store: Store) -> list[str]:
    """For every kind of target the attack that rebuilds most, over seeds: a first look, not a leaderboard."""
    entries = {entry.result.key: entry for entry in read_entries(store)}
    leaks: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    doubted: set[tuple[tuple[str, ...], str]] = set()
    for job in bench.of("attack"):
        entry, named = entries.get(job.key), job.named
        if schedule.states[job.id] == "done" and entry is not None:
            target: tuple[str, ...] = (named.data, named.model, named.cut, named.threat, named.defense)
            attack = str(named.attack)
            leaks[target][attack].append(entry.result.leak)
            if entry.result.doubtful:
                doubted.add((target, attack))
    lines = []
    for target, attacks in leaks.items():
        means = {attack: sum(values) / len(values) for attack, values in attacks.items()}
        best = max(means, key=lambda attack: means[attack])
        doubt = ", in doubt" if (target, best) in doubted else ""
        lines.append(f"leak {means[best]:7.3f}  {'  '.join(target)}  by {best} ({len(attacks[best])} seeds{doubt})")
    return lines


def store_status(store: Store) -> list[GridStatus]:
    """Where every grid of a store stands."""
    running = _running(store)
    grids = []
    for key in sorted(store.keys("grid")):
        entry = store.get_content("grid", key)
        assert entry is not None
        bench = read_bench(key, entry.record)
        schedule = Schedule.of(bench.jobs, store)
        states = dict(schedule.states)
        for job in running:
            if states.get(job) == "waiting":
                states[job] = "running"
        grids.append(
            GridStatus(
                grid=bench.name,
                key=key,
                file=bench.file,
                states={stage: dict(own) for stage, own in count_states(bench.jobs, states).items()},
                running=[schedule.jobs[job].title for job in running if job in schedule.jobs],
                failures=failures(bench, schedule, store),
            )
        )
    return grids


def _running(store: Store) -> list[str]:
    """Jobs that running coordinators on this machine have started and not finished."""
    open_jobs: Counter[str] = Counter()
    for path in sorted((store.root / "events").glob("*.jsonl")):
        host, _, process = path.stem.partition("-")[2].rpartition("-")
        if host == os.uname().nodename and not os.path.exists(f"/proc/{process}"):  # noqa: PTH110
            continue
        for event in read_log(path):
            if event.event == "start":
                open_jobs[event.job] += 1
            elif event.event in {"done", "failed"}:
                open_jobs[event.job] -= 1
            elif event.event in {"end", "stopped"}:
                open_jobs.clear()
    return [job for job, count in open_jobs.items() if count > 0]
