"""Progress of long work: methods report to whoever listens, and to nobody by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol


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


_SILENT = _Silent()
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send progress to `listener` inside this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def stage(name: str, total: int) -> AbstractContextManager[Bar]:
    """`with stage("train", epochs) as bar: … bar.advance(loss=0.1)`."""
    return (_listener.get() or _SILENT).stage(name, total)


def say(text: str) -> None:
    """One line about what is going on."""
    (_listener.get() or _SILENT).say(text)
