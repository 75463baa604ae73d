"""How long `leakscope --help` takes, beside a bare Python start and beside importing torch, in one run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "help": [sys.executable, "-m", "leakscope", "--help"],
    "torch": [sys.executable, "-c", "import torch"],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main(rounds: int = 7) -> None:
    began = time.perf_counter()
    # Interleaved, so that a busy moment hits all three.
    runs = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(rounds)]
    median = {name: statistics.median(run[name] for run in runs) for name in COMMANDS}
    for name, value in median.items():
        print(f"{name:8} {value:.3f} s")
    ratios = {
        "torch import over help": median["torch"] / median["help"],
        "help over bare python": median["help"] / median["python"],
    }
    line = {"benchmark": "startup", "ratios": ratios, "seconds": time.perf_counter() - began, "help": median["help"]}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
