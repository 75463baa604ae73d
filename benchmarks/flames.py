"""Where the time of a command goes: a flame graph as text.

    python benchmarks/flames.py audit demo --set cuts='[features.2]' --set defenses='[none]' --store /tmp/store
    python benchmarks/flames.py train --data mnist5k --model convnet --defense sca --epochs 1 --store /tmp/store

Runs `leakscope` with these arguments in this process and looks, a hundred times a second, at where the main thread
is. Only our own functions count: time in PyTorch belongs to the one that called it. A line is the share of all looks
inside a function and what it calls; functions under `--least` percent (first argument, if given) are left out.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType

from leakscope.cli import app, run

LEAST = 4.0  # percent
EVERY = 0.01  # seconds

Stack = tuple[str, ...]


def ours(frame: FrameType | None) -> Stack:
    """Our functions on the stack, outermost first; a function that calls itself counts once."""
    names: list[str] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("leakscope.") and not module.startswith("leakscope.cli"):
            name = f"{module.removeprefix('leakscope.')}.{frame.f_code.co_qualname}".replace("<locals>.", "")
            if not names or names[-1] != name:
                names.append(name)
        frame = frame.f_back
    return tuple(reversed(names))


def watch(found: Counter[Stack], thread: int, stop: threading.Event) -> None:
    """Look until told to stop; looks are weighted by processor time, which waiting for a core does not use."""
    before = time.process_time()
    while not stop.wait(EVERY):
        now = time.process_time()
        found[ours(sys._current_frames().get(thread))] += round(1e6 * (now - before))
        before = now


def shown(found: Counter[Stack], least: float) -> None:
    total = sum(found.values())
    inside: Counter[Stack] = Counter()
    for stack, count in found.items():
        for depth in range(1, len(stack) + 1):
            inside[stack[:depth]] += count
    told: set[Stack] = set()
    for stack in sorted(inside, key=lambda s: [(-inside[s[: d + 1]], s[d]) for d in range(len(s))]):
        share = 100 * inside[stack] / total
        lone = len(stack) > 1 and inside[stack] > 0.97 * inside[stack[:-1]]  # its caller says as much
        if share >= least and not lone:
            depth = sum(stack[:d] in told for d in range(1, len(stack)))
            print(f"{share:5.1f} %  {'  ' * depth}{stack[-1]}")
            told.add(stack)
    print(f"{total / 1e6:.1f} CPU seconds")


def main() -> int:
    arguments, least = sys.argv[1:], LEAST
    if arguments and arguments[0].startswith("--least="):
        least = float(arguments.pop(0).removeprefix("--least="))
    found: Counter[Stack] = Counter()
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(found, threading.get_ident(), stop), daemon=True)
    watcher.start()
    code = run(app, [*arguments, "--quiet"])
    stop.set()
    watcher.join()
    shown(found, least)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
