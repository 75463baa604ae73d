"""Twenty `kill -9` of workers and coordinators during a grid; then it completes, and nothing is lost or doubled.

Usage: python benchmarks/chaos.py [KILLS] [GRID.yaml [SCALE]]

Two coordinators share the store all the time. The scores are then compared with an undisturbed run, every
entry of the store is read, and the events tell whether a target was ever trained twice.
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
from pathlib import Path
from typing import Any

from leakscope.runners.bench import plan_bench
from leakscope.runners.schedule import Schedule
from leakscope.store import Store

SMOKE = Path(__file__).parents[1] / "configs" / "bench_smoke.yaml"


def coordinator(grid: list[str], store: Path, workers: int = 1) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "leakscope", "bench", *grid, "--store", str(store), "--retry", "failed"]
    # A data root adds metrics whose weights lie there, and with them other results than those planned below.
    alone = {name: value for name, value in os.environ.items() if name != "LEAKSCOPE_DATA"}
    return subprocess.Popen([*command, "--workers", str(workers), "--quiet"], stdout=subprocess.DEVNULL, env=alone)


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


def unreadable(store: Store) -> list[str]:
    """Entries of which a record or a tensor cannot be read."""
    bad = []
    for kind in sorted(path.name for path in (store.root / "entries").iterdir()):
        for key in store.keys(kind):
            entry = store.get(kind, key)
            assert entry is not None
            try:
                entry.record  # noqa: B018 (reading it is the point)
                if (entry.folder / "tensors.safetensors").exists():
                    entry.tensors()
            except Exception as error:
                bad.append(f"{kind} {key}: {error}")
    return bad


def scores(store: Store) -> dict[str, Any]:
    measured = {key: summary["metrics"] for key, summary in store.summaries("result").items()}
    return {"result": measured, "control": store.summaries("control")}


def chaos(kills: int, grid: list[str], folder: Path, pause: tuple[float, float] = (0.5, 6.0)) -> dict[str, Any]:
    """Run the grid under fire, then to its end, and beside it undisturbed."""
    chance = random.Random(7)
    store = Store(folder / "chaos")
    # Planned beforehand, so that the shots fall on work.
    scale = grid[grid.index("--scale") + 1] if "--scale" in grid else None
    bench = plan_bench(Path(grid[0]), {}, scale, store)
    shots: Counter[str] = Counter()
    running = [coordinator(grid, store.root) for _ in range(2)]
    while shots["worker"] + shots["coordinator"] < kills:
        time.sleep(chance.uniform(*pause))
        shots[kill_someone(running, chance)] += 1
        for number, process in enumerate(running):
            if process.poll() is not None:
                if Schedule.of(bench.jobs, store).finished and process.returncode == 0:
                    # All done before the shots were: what is left falls on a store that is complete.
                    shots["after the end"] += 1
                running[number] = coordinator(grid, store.root)
        if shots["after the end"] > 5:
            break
    for process in running:
        process.wait()
    last = coordinator(grid, store.root, workers=2)
    last.wait()
    calm = Store(folder / "calm")
    coordinator(grid, calm.root, workers=2).wait()
    return {
        "kills": dict(shots),
        "exit code of the last run": last.returncode,
        "states": Schedule.of(bench.jobs, store).counts,
        "unreadable entries": unreadable(store),
        "left in incoming": len(list((store.root / "incoming").iterdir())),
        "entries beyond an undisturbed run": sum(
            len(store.keys(kind) - calm.keys(kind)) for kind in ("trained", "target", "prepared", "attack", "result")
        ),
        "scores equal": scores(store) == scores(calm),
    }


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
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
