"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it happens to be: inside the callback of a weak reference, an import that takes
any error for "not installed", or C code that clears errors, it is gone, and the work goes on for hours. So it is noted
as well, and raised again at the next step of the work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_asked = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside this block, work that was asked to end ends at its next step."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # somebody else decides
        return
    signal.signal(signal.SIGINT, _noted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _asked.clear()


def _noted(number: int, frame: FrameType | None) -> None:
    _asked.set()
    raise KeyboardInterrupt


def heed() -> None:
    """A step of the work: not taken when it was asked to end."""
    if _asked.is_set():
        raise KeyboardInterrupt
