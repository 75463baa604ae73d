"""Progress of long work: methods report to whoever listens, and to nobody by default."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from leakscope.core.interrupts import heed


class Bar(Protocol):
    """One piece of work under way."""

    def advance(self, steps: int = 1, **figures: float) -> None: ...


class Listener(Protocol):
    """Shows progress: a terminal, a log, a test."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Bar]: ...

    def say(self, text: str) -> None: ...


class _Silent:
    def advance(self, steps: int = 1, **figures: float) -> None:
        pass

    def stage(self, name: str, total: int) -> AbstractContextManager[Bar]:
        return nullcontext(self)

    def say(self, text: str) -> None:
        pass


class Inline:
    """One line that is written again and again: what a notebook, or a plain script, can show."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write, self._depth = write, 0

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Bar]:
        self._depth += 1
        try:
            yield _Line(self, name, total) if self._depth == 1 else SILENT
        finally:
            self._depth -= 1
            if not self._depth:
                self._write("\n")

    def say(self, text: str) -> None:
        pass

    def tell(self, text: str) -> None:
        self._write(f"\r{text:<72}")


class _Line:
    def __init__(self, shown: Inline, name: str, total: int) -> None:
        self._shown, self._name, self._total, self._done = shown, name, total, 0
        self._started = time.monotonic()

    def advance(self, steps: int = 1, **figures: float) -> None:
        self._done += steps
        spent = time.monotonic() - self._started
        self._shown.tell(f"{self._name}: {self._done} of {self._total} jobs, {spent:.0f} s")


#: Nobody listens.
SILENT = _Silent()
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send progress to `listener` inside this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class _Heeding:
    """A bar at which work ends that was asked to."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def advance(self, steps: int = 1, **figures: float) -> None:
        heed()
        self._bar.advance(steps, **figures)


@contextmanager
def stage(name: str, total: int) -> Iterator[Bar]:
    """`with stage("train", epochs) as bar: … bar.advance(loss=0.1)`."""
    with (_listener.get() or SILENT).stage(name, total) as bar:
        yield _Heeding(bar)


def say(text: str) -> None:
    """One line about what is going on."""
    (_listener.get() or SILENT).say(text)
