"""A grid: planned once, cached in the store, readable without torch, and run to completion."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from leakscope.core.errors import UsageError
from leakscope.core.own_code import code_in
from leakscope.core.spec import Plain, digest
from leakscope.core.yaml_text import read_yaml
from leakscope.experiments.grid_budgets import Budgets
from leakscope.experiments.job import Job
from leakscope.runners.estimate import Experience
from leakscope.runners.events import EventLog, Watcher, read_events
from leakscope.runners.live import watching
from leakscope.runners.machine import Machine, runner_for
from leakscope.runners.schedule import Limits, Schedule, run_jobs
from leakscope.store import Store

#: Where third parties register methods.
_GROUPS = ("attacks", "data", "defenses", "metrics", "models", "priors")
#: Enough to notice that a folder of pictures was changed.
MANY_FILES = 20_000


@dataclass(frozen=True)
class Bench:
    """A planned grid."""

    key: str
    name: str
    file: str
    budgets: Budgets
    jobs: list[Job]

    def of(self, *stages: str) -> list[Job]:
        return [job for job in self.jobs if job.stage in stages]


def plan_bench(
    path: Path, settings: Mapping[str, Any], scale: str | None, store: Store, *, allow_code: bool = False
) -> Bench:
    """The jobs of a grid: from the store when nothing they depend on has changed, else planned now.

    One that names code is always planned from its file: no store says what to run.
    """
    question = _identity(path, settings, scale)
    answer = store.get("plan", question)
    kept = None if answer is None else store.get_content("grid", answer.record["grid"])
    if kept is None or code_in(kept.record):
        from leakscope.experiments.grid import BenchConfig, grid_jobs

        config = BenchConfig.read(path, settings, scale, allow_code=allow_code)
        jobs = grid_jobs(config)
        if not jobs:
            raise UsageError(f"{path}: everything is excluded; nothing is left to run")
        record = _record(path, config.budgets.model_dump(), jobs)
        kept = store.put("grid", digest(record), record)
        store.put("plan", question, {"grid": kept.key})
    return read_bench(kept.key, kept.record)


def read_bench(key: str, record: Plain) -> Bench:
    configs = record["configs"]
    jobs = [Job.from_json({**plain, "config": configs[plain["config"]]}) for plain in record["jobs"]]
    summary = record["summary"]
    return Bench(key, summary["name"], summary["file"], Budgets.model_validate(record["budgets"]), jobs)


def _record(path: Path, budgets: Plain, jobs: list[Job]) -> Plain:
    """Stores each configuration once: a grid of thousands of jobs has few."""
    names = {id(job.config): digest(job.config) for job in jobs}
    configs = {names[id(job.config)]: job.config for job in jobs}
    plain = [{**job.as_json(), "config": names[id(job.config)]} for job in jobs]
    summary = {"name": path.stem, "file": str(path.absolute()), "jobs": len(jobs)}
    return {"configs": configs, "jobs": plain, "budgets": budgets, "summary": summary}


def _identity(path: Path, settings: Mapping[str, Any], scale: str | None) -> str:
    """Changes with anything the plan depends on: the file, the code, methods of others, and files it names."""
    tree = read_yaml(path)
    text = path.read_text(encoding="utf-8")
    given = {name: str(value) for name, value in settings.items()}
    code = sorted(_stamps(Path(__file__).parents[1], "*.py"))
    others = sorted(
        f"{entry.name} {entry.value} {entry.dist.version if entry.dist else ''}"
        for group in _GROUPS
        for entry in entry_points(group=f"leakscope.{group}")
    )
    named = [stamp for word in sorted(set(_words([tree, given]))) for stamp in sorted(_stamps(Path(word), "*"))]
    return digest([text, given, scale, str(Path.cwd()), code, others, named])


def _words(tree: Any) -> Iterator[str]:
    """Every word of a configuration that may be the path of a file."""
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif isinstance(tree, str):
        yield from (part for part in (tree, *tree.split(":")) if part)
        return
    elif not isinstance(tree, list):
        return
    for item in tree:
        yield from _words(item)


def _stamps(path: Path, pattern: str) -> Iterator[str]:
    """Size and time of a file, or of every file below a folder."""
    try:
        if path.is_dir():
            found = (Path(folder, name) for folder, _, files in os.walk(path) for name in files)
            for file in itertools.islice(found, MANY_FILES):
                if file.match(pattern):
                    yield from _stamps(file, pattern)
        elif path.is_file():
            state = path.stat()
            yield f"{path} {state.st_size} {state.st_mtime_ns}"
    except OSError:
        return


def run_bench(
    bench: Bench, store: Store, machine: Machine, *, retry: bool, quiet: bool, watchers: Sequence[Watcher] = ()
) -> Schedule:
    """Run what is missing of a grid; afterwards the schedule tells where every job stands."""
    experience = Experience(read_events(store.root))
    schedule = Schedule.of(bench.jobs, store, experience.seconds(bench.jobs), retry=retry)
    if schedule.finished:
        return schedule
    budgets = bench.budgets
    limits = Limits(
        None if budgets.hours is None else time.monotonic() + 3600 * budgets.hours,
        None if budgets.job_minutes is None else 60 * budgets.job_minutes,
    )
    store.sweep()
    runner = runner_for(machine, store, budgets)
    try:
        with watching(schedule, runner.capacity, quiet=quiet) as shown:
            run_jobs(schedule, runner, store, [EventLog(store.root, bench.key), *shown, *watchers], limits)
    finally:
        runner.close()
    store.summaries("result")  # brings the index up to date, so that no leaderboard waits for it
    return schedule
