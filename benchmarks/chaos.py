"""A hundred `kill -9` of workers and coordinators during grids, power cuts among them; nothing is lost or doubled.

Usage: python benchmarks/chaos.py [KILLS] [GRID.yaml [SCALE]]

Two coordinators share the store all the time. Every tenth shot is a power cut: all processes die at once, and what
they had not synced is dropped, cut short or zeroed (`power_loss.py`). A grid that completes before the shots are
fired begins again in a new store. Scores are compared with an undisturbed run, and all files are verified.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from leakscope.runners.bench import plan_bench
from leakscope.runners.schedule import Schedule
from leakscope.store import Store, verify

sys.path.insert(0, str(Path(__file__).parent))
from power_loss import lose_power, noted_here, sync_log

SMOKE = Path(__file__).parents[1] / "configs" / "bench_smoke.yaml"


#: Of so many shots one is a power cut.
CUTS = 10


def coordinator(
    grid: list[str], store: Path, workers: int = 1, extra: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "leakscope", "bench", *grid, "--store", str(store), "--retry", "failed"]
    # A data root adds metrics whose weights lie there, and with them other results than those planned below.
    alone = {name: value for name, value in os.environ.items() if name != "LEAKSCOPE_DATA"}
    return subprocess.Popen(
        [*command, "--workers", str(workers), "--quiet"], stdout=subprocess.DEVNULL, env=alone | (extra or {})
    )


def workers_of(process: int) -> list[int]:
    """Processes whose parent is this one (Linux)."""
    children = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else []


def kill_someone(coordinators: list[subprocess.Popen[bytes]], chance: random.Random) -> str:
    workers = [worker for process in coordinators for worker in workers_of(process.pid)]
    victims = [("coordinator", process.pid) for process in coordinators] + [("worker", pid) for pid in workers]
    who, process_id = chance.choice(victims)
    try:
        os.kill(process_id, signal.SIGKILL)
    except ProcessLookupError:
        return "nobody"
    return who


def cut_power(coordinators: list[subprocess.Popen[bytes]], store: Path, log: Path, chance: random.Random) -> int:
    """All die at once, and the disk forgets what it was not made to keep; gives how much was spoilt."""
    everybody = [worker for process in coordinators for worker in workers_of(process.pid)]
    everybody += [process.pid for process in coordinators if process.poll() is None]
    for process_id in everybody:
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    for process in coordinators:
        process.wait()
    while any(Path(f"/proc/{worker}").exists() for worker in everybody):  # orphans are reaped by somebody else
        time.sleep(0.05)
    return sum(lose_power(store, log, chance).values())


def scores(store: Store) -> dict[str, Any]:
    measured = {key: summary["metrics"] for key, summary in store.summaries("result").items()}
    return {"result": measured, "control": store.summaries("control")}


def _under_fire(
    kills: int, grid: list[str], folder: Path, pause: tuple[float, float], shots: Counter[str], chance: random.Random
) -> Store:
    """One grid until it is complete or all shots are fired."""
    log, recording = sync_log(folder.with_name(f"{folder.name}-log"))
    scale = grid[grid.index("--scale") + 1] if "--scale" in grid else None
    with noted_here(log):
        store = Store(folder)
        # Planned beforehand, so that the shots fall on work.
        bench = plan_bench(Path(grid[0]), {}, scale, store)
    running = [coordinator(grid, store.root, extra=recording) for _ in range(2)]
    while (fired := shots["worker"] + shots["coordinator"] + shots["power cut"]) < kills:
        time.sleep(chance.uniform(*pause))
        if fired % CUTS == CUTS - 1:
            shots["spoilt by power cuts"] += cut_power(running, store.root, log, chance)
            shots["power cut"] += 1
            store = Store(folder)
        else:
            shots[kill_someone(running, chance)] += 1
        if Schedule.of(bench.jobs, store).finished:
            break
        for number, process in enumerate(running):
            if process.poll() is not None:
                running[number] = coordinator(grid, store.root, extra=recording)
    for process in running:
        process.wait()
    return store


def chaos(kills: int, grid: list[str], folder: Path, pause: tuple[float, float] = (0.5, 6.0)) -> dict[str, Any]:
    """Run grids under fire, each then to its end, and one beside them undisturbed."""
    chance, shots = random.Random(7), Counter[str]()
    calm = Store(folder / "calm")
    coordinator(grid, calm.root, workers=2).wait()
    found: list[dict[str, Any]] = []
    while shots["worker"] + shots["coordinator"] + shots["power cut"] < kills:
        name = f"chaos{len(found) or ''}"
        store = _under_fire(kills, grid, folder / name, pause, shots, chance)
        last = coordinator(grid, store.root, workers=2)
        last.wait()
        scale = grid[grid.index("--scale") + 1] if "--scale" in grid else None
        kinds = ("trained", "target", "prepared", "attack", "result")
        wrong = list(verify(store))
        found.append(
            {
                "exit code": last.returncode,
                "states": Schedule.of(plan_bench(Path(grid[0]), {}, scale, store).jobs, store).counts,
                # Logs of events are not synced: a power cut may cut them short, and `verify` then says so.
                "wrong": [str(problem) for problem in wrong if problem.path.parent.name != "events"],
                "logs": sum(problem.path.parent.name == "events" for problem in wrong),
                "beyond": sum(len(store.keys(kind) - calm.keys(kind)) for kind in kinds),
                "equal": scores(store) == scores(calm),
            }
        )
    return {
        "kills": dict(shots),
        "grids": len(found),
        "exit code of the last run": max(own["exit code"] for own in found),
        "states": sorted({state for own in found for state in own["states"]}),
        "unreadable entries": [problem for own in found for problem in own["wrong"]],
        "logs that power cuts spoilt": sum(own["logs"] for own in found),
        "entries beyond an undisturbed run": sum(own["beyond"] for own in found),
        "scores equal": all(own["equal"] for own in found),
    }


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    grid = [sys.argv[2] if len(sys.argv) > 2 else str(SMOKE)]
    grid += ["--scale", sys.argv[3]] if len(sys.argv) > 3 else []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = chaos(kills, grid, Path(folder))
    report["seconds"] = round(time.perf_counter() - began, 1)
    print(json.dumps(report, indent=1))
    sound = (
        report["scores equal"] and not report["unreadable entries"] and set(report["states"]) <= {"done", "unneeded"}
    )
    sys.exit(0 if sound and not report["entries beyond an undisturbed run"] else 1)


if __name__ == "__main__":
    main()
