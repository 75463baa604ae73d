"""A store of made-up results: how long a leaderboard takes to open, filter and render, and how much memory.

`python benchmarks/leaderboard.py 20000` is the size that must stay below 5 s and 1 GB; on a busy machine take
fewer and read the scaled figures.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leakscope.core.spec import digest

WANTED = 20_000
METRICS = ("leak", "mse", "psnr", "ssim", "cosine", "lpips")
ATTACKS = ("ridge", "decoder:steps=400", "search:steps=200", "decoder:capacity=large")
RENDER = """
import resource, sys, time
before = time.perf_counter(), time.process_time()
from leakscope.cli import app, run
assert run(app, ["report", "--group", "defense", "--store", sys.argv[1], "--quiet", *sys.argv[2:]]) == 0
print(time.perf_counter() - before[0], time.process_time() - before[1],
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def fill(root: Path, count: int) -> None:
    """Results as the pipeline writes them: four attacks and three seeds on every target."""
    (root / "entries").mkdir(parents=True)
    (root / "VERSION").write_text("1\n")
    command = "leakscope attack --set splits='{\"private\": 4000}' --set training='{\"epochs\": 10}' --set victims=64"
    for number in range(count):
        target, attack = divmod(number, len(ATTACKS))
        place, seed = divmod(target, 3)
        setting, strength = divmod(place, 40)
        level = (number * 7919 % 1000) / 1000
        scores = {"mean": level, "std": 0.1, "low": level - 0.02, "high": level + 0.02, "worst": level + 0.1, "n": 64}
        summary = {
            "target": digest(target), "attack": ATTACKS[attack], "seed": seed, "model": "convnet", "threat": "all",
            "cut": "features.2", "defense": f"gaussian:sigma={strength / 10}" if strength else "none",
            "accuracy": 0.95 - strength / 200, "setting": f"{setting:08x}", "victims": f"{setting:024x}",
            "data": f"set{setting % 9}", "command": f"{command} --set data=set{setting % 9}",
            "metrics": dict.fromkeys(METRICS, scores),
        }  # fmt: skip
        key = digest(number)
        folder = root / "entries" / "result" / key[:2] / key
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps({"attack": digest(-number), "summary": summary}))


def render(root: Path, *arguments: str) -> tuple[float, float, float]:
    """Seconds, seconds of CPU, and megabytes of a process that draws the page."""
    done = subprocess.run(
        [sys.executable, "-c", RENDER, str(root), *arguments], capture_output=True, text=True, check=True
    )
    wall, cpu, kilobytes = map(float, done.stdout.split())
    return wall, cpu, kilobytes / 1024


def main(count: int) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder, "store"), Path(folder, "board.html")
        fill(root, count)
        runs = {
            "empty filter": (1, ("--filter", "data=set0", "--filter", "defense=none", "--out", str(out))),
            "first, builds the index": (count, ("--out", str(out))),
            "again": (count, ("--out", str(out))),
            "csv": (count, ("--format", "csv", "--out", f"{out}.csv")),
        }
        # An index that exists is the usual case, so the first entry, which builds it, is timed apart.
        figures = {}
        shutil.rmtree(root / "index", ignore_errors=True)
        order = ["first, builds the index", "again", "empty filter", "csv"]
        for name in order:
            wall, cpu, megabytes = render(root, *runs[name][1])
            figures[name] = {"seconds": wall, "cpu": cpu, "megabytes": megabytes}
            print(f"{name:24} {wall:7.2f} s wall  {cpu:6.2f} s CPU  {megabytes:6.0f} MB")
            if name == "again":
                print(f"{'':24} page of {out.stat().st_size / 1e6:.1f} MB")
        start = figures["empty filter"]["cpu"]
        scale = WANTED / count
        again = start + scale * (figures["again"]["cpu"] - start)
        first = start + scale * (figures["first, builds the index"]["cpu"] - start)
        print(f"scaled to {WANTED}: {first:.1f} s CPU with a new index, {again:.1f} s CPU after")
    line = {
        "benchmark": "leaderboard", "results": count, "scaled_cpu_seconds": again, "scaled_first": first,
        "megabytes": max(f["megabytes"] for f in figures.values()), "seconds": time.perf_counter() - began,
    }  # fmt: skip
    print(json.dumps(line))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1_000_000, "more than a gigabyte"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else WANTED)
