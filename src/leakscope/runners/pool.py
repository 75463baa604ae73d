"""A pool of worker processes on this machine."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from leakscope.core.interpreter import module_command
from leakscope.core.spec import Plain
from leakscope.experiments.job import id_of
from leakscope.runners.runner import Outcome, Progress


class Pool:
    """`workers` processes, each on `threads` cores and on one of `devices`, in turn.

    A worker that dies takes its job with it and nothing else: the job is reported as failed, with the
    end of its log, and another worker starts.
    """

    def __init__(self, store: Path, devices: list[str], *, workers: int, threads: int = 1) -> None:
        self.capacity = workers
        self._store, self._devices, self._threads = store, devices, threads
        self._selector = selectors.DefaultSelector()
        self._workers = [self._start(number) for number in range(workers)]

    def _start(self, number: int) -> _Worker:
        device = self._devices[number % len(self._devices)]
        worker = _Worker(number, self._store, device, self._threads)
        self._selector.register(worker.out, selectors.EVENT_READ, worker)
        return worker

    def submit(self, jobs: list[Plain]) -> None:
        for job in jobs:
            free = next(worker for worker in self._workers if worker.job is None)
            if free.ended:
                free = self._workers[free.number] = self._start(free.number)
            free.take(job)

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        happened: list[Outcome | Progress] = []
        for ready, _ in self._selector.select(seconds):
            worker: _Worker = ready.data
            happened += worker.read()
            if worker.ended:
                self._selector.unregister(worker.out)
                happened += worker.last_words()
        return happened

    def cancel(self, job: str) -> None:
        for worker in self._workers:
            if worker.job == job:
                worker.end("ended: it took longer than allowed")

    def close(self) -> None:
        for worker in self._workers:
            worker.end("ended: the grid was stopped")
        for worker in self._workers:
            worker.process.wait()
        self._selector.close()


class _Worker:
    """One process, the job it holds, and what it says."""

    def __init__(self, number: int, store: Path, device: str, threads: int) -> None:
        self.number, self.ended = number, False
        self.job: str | None = None
        self._name, self._since, self._reason = f"{os.uname().nodename}/{number}", 0.0, ""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        cores = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        self.process = subprocess.Popen(  # noqa: S603 (our own module)
            [*module_command("leakscope.runners.worker"), str(store), device, str(threads), self._name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env={**os.environ, **cores},
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self.out = self.process.stdin, self.process.stdout
        os.set_blocking(self.out.fileno(), False)
        self._partial = b""

    def take(self, job: Plain) -> None:
        self.job, self._since = id_of(job), time.monotonic()
        try:
            self._in.write(json.dumps(job).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            pass  # it died while idle; the selector sees the end of its output next

    def read(self) -> list[Outcome | Progress]:
        chunk = self.out.read()
        if chunk == b"":
            self.ended = True
        *lines, self._partial = (self._partial + (chunk or b"")).split(b"\n")
        said: list[Outcome | Progress] = []
        for line in lines:
            message = json.loads(line)
            if "outcome" in message:
                self.job = None
                said.append(Outcome(**message["outcome"]))
            else:
                said.append(Progress(**message["progress"]))
        return said

    def last_words(self) -> list[Outcome | Progress]:
        code = self.process.wait()
        self._in.close()
        self.out.close()
        if self.job is None:
            return []
        self._log.seek(0)
        words = self._log.read()[-4000:].decode(errors="replace")
        seconds = round(time.monotonic() - self._since, 3)
        job, self.job = self.job, None
        return [Outcome(job, self._reason or _death(code), words, seconds, worker=self._name)]

    def end(self, reason: str) -> None:
        self._reason = reason
        self.process.kill()


def _death(code: int) -> str:
    if code >= 0:
        return f"the worker ended by itself with code {code}"
    hint = " (often: out of memory; use fewer workers)" if -code == signal.SIGKILL else ""
    return f"the worker was killed by {signal.Signals(-code).name}{hint}"
