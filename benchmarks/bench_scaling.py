"""Two workers against one on the smoke grid, the scheduler's own cost, and a store of 20,000 results.

Usage: python benchmarks/bench_scaling.py [scaling] [overhead] [store]   (all three when none is named)
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakscope.core.spec import Plain, digest
from leakscope.experiments.job import Job, Named
from leakscope.runners.events import EventLog
from leakscope.runners.runner import Outcome, Progress
from leakscope.runners.schedule import Schedule, run_jobs
from leakscope.store import Store

SMOKE = Path(__file__).parents[1] / "configs" / "bench_smoke.yaml"


def _bench(store: Path, *options: str) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "leakscope", "bench", str(SMOKE), "--store", str(store), "--quiet", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def scaling(folder: Path, rounds: int = 3) -> dict[str, Any]:
    """One worker, two workers, and two workers on a store that has everything; planning counts in all.

    The quickest of interleaved rounds: other tenants of a machine only ever add to a time. What the machine
    itself makes of two processes beside one stands next to it, and bounds the ratio.
    """
    one, two, ceiling = [], [], []
    for number in range(rounds):
        ceiling.append(_machine())
        one.append(_bench(folder / f"one-{number}", "--workers", "1"))
        two.append(_bench(folder / f"two-{number}", "--workers", "2"))
    again = min(_bench(folder / "two-0", "--workers", "2") for _ in range(3))
    return {
        "one worker, s": [round(took, 1) for took in one], "two workers, s": [round(took, 1) for took in two],
        "ratio": round(min(one) / min(two), 2), "the machine's own": [round(ratio, 2) for ratio in ceiling],
        "again, s": round(again, 2), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


_SPIN = """
import time, torch
torch.set_num_threads(1)
layer, x = torch.nn.Conv2d(32, 32, 3), torch.randn(32, 32, 12, 12)
layer(x)
steps, end = 0, time.perf_counter() + 4
while time.perf_counter() < end:
    layer(x).square().mean().backward()
    steps += 1
print(steps)
"""


def _machine() -> float:
    """Steps a second of two processes together over those of one alone, each on one thread and nothing shared."""

    def spin(processes: int) -> int:
        command = [sys.executable, "-c", _SPIN]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
        return sum(int(process.communicate()[0]) for process in running)

    return spin(2) / spin(1)


class _Instant:
    """Every job is done as soon as it is started, so that what is left is the scheduler."""

    capacity = 8

    def __init__(self, store: Store) -> None:
        self._store, self._todo = store, []  # type: tuple[Store, list[Plain]]

    def submit(self, jobs: list[Plain]) -> None:
        self._todo += [json.loads(json.dumps(job)) for job in jobs]

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        todo, self._todo = self._todo, []
        return [Outcome(f"{job['stage']}-{job['key']}", seconds=0.0) for job in todo]

    def cancel(self, job: str) -> None: ...

    def close(self) -> None: ...


def _jobs(targets: int, attacks: int) -> list[Job]:
    jobs = []
    for number in range(targets):
        row = Named("d", "m", "all", "c", f"{number}", 0)
        target = Job("target", digest([number]), (("target", digest([number])),), (), {}, {}, row, 1.0)
        jobs.append(target)
        for which in range(attacks):
            key = digest([number, which])
            own = replace(row, attack=f"a{which}")
            jobs.append(Job("attack", key, (("result", key),), (target.id,), {}, {}, own, 1.0))
    return jobs


def overhead(folder: Path, targets: int = 100, attacks: int = 19) -> dict[str, Any]:
    """Milliseconds a job of scheduling, logging and messages, over 2,000 jobs."""
    store = Store(folder / "overhead")
    jobs = _jobs(targets, attacks)
    started = time.perf_counter()
    run_jobs(Schedule.of(jobs, store), _Instant(store), store, [EventLog(store.root)])
    return {"jobs": len(jobs), "ms a job": round(1000 * (time.perf_counter() - started) / len(jobs), 3)}


_READ = """
import json, resource, sys, time
started = time.perf_counter()
from leakscope.store import Store
store = Store(sys.argv[1])
rows = store.summaries("result")
chosen = [row for row in rows.values() if row["attack"] == "a3"]
best = {}
for row in rows.values():
    best[row["target"]] = max(best.get(row["target"], -9.0), row["metrics"]["leak"]["mean"])
took = time.perf_counter() - started
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps([len(rows), len(chosen), len(best), took, memory]))
"""


def large_store(folder: Path, results: int = 20_000) -> dict[str, Any]:
    """A store of 20,000 results: written, indexed once, then opened, filtered and summarised; one entry shown."""
    store = Store(folder / "large")
    names = ("leak", "mse", "psnr", "ssim", "cosine")
    key = ""
    for number in range(results):
        key = digest([number])
        figures = {"mean": number % 97 / 97, "low": 0.1, "high": 0.2, "std": 0.1, "worst": 0.9}
        summary = {"target": digest([number // 20, "t"]), "attack": f"a{number % 20}", "seed": 0,
                   "metrics": dict.fromkeys(names, figures)}  # fmt: skip
        # Written without waiting for the disk: this measures reading.
        target = store.root / "entries" / "result" / key[:2] / key
        target.mkdir(parents=True)
        (target / "record.json").write_text(json.dumps({"attack": key, "summary": summary}))
    took = []
    for _ in range(2):
        answer = subprocess.run([sys.executable, "-c", _READ, str(store.root)], check=True, capture_output=True)
        took.append(json.loads(answer.stdout))
    shown = []
    for _ in range(5):
        started = time.perf_counter()
        command = [sys.executable, "-m", "leakscope", "show", key, "--store", str(store.root)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        shown.append((time.perf_counter() - started, used))
    return {
        "results": took[0][0], "first opening with indexing, s": round(took[0][3], 2),
        "later openings, s": round(took[1][3], 2), "memory, GB": round(max(t[4] for t in took), 2),
        "show, s": round(min(shown)[0], 2), "show, CPU s": round(min(used for _, used in shown), 2),
    }  # fmt: skip


PARTS = {"scaling": scaling, "overhead": overhead, "store": large_store}


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = {name: PARTS[name](Path(folder)) for name in sys.argv[1:] or PARTS}
    ratios = {"two workers over one": report["scaling"]["ratio"]} if "scaling" in report else {}
    print(
        json.dumps({"benchmark": "bench_scaling", "ratios": ratios, **report, "seconds": time.perf_counter() - began})
    )


if __name__ == "__main__":
    main()
