"""A worker process of the pool: one job per line in, how it ended per line out.

It ends when its standard input closes, even in the middle of a job: a killed coordinator
leaves no process behind, and the interrupted job resumes from its checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from typing import Any

from leakscope.core.waiting import spin_briefly


def main(store: str, device: str, threads: int, name: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the coordinator, which decides
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints goes to the log
    spin_briefly()
    todo: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(todo,), daemon=True).start()

    from leakscope.experiments.execution import Executor
    from leakscope.experiments.workplace import Workplace
    from leakscope.runners.devices import chosen
    from leakscope.runners.outcome import do, pin_threads
    from leakscope.store import Store

    pin_threads(threads)
    executor = Executor(Workplace(Store(store), chosen(device)))

    def send(kind: str, message: Any) -> None:
        out.write(json.dumps({kind: asdict(message)}) + "\n")

    while True:
        job = json.loads(todo.get())
        send("outcome", do(executor, job, name, lambda message: send("progress", message)))


def _listen(todo: queue.Queue[str]) -> None:
    for line in sys.stdin:
        todo.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
