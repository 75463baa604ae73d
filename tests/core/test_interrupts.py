"""Ctrl-C ends work although Python lost the exception, and nothing that comes after."""

from __future__ import annotations

import contextlib
import signal

import pytest

from leakscope.core import progress
from leakscope.core.interrupts import heed, interruptible


@pytest.mark.usefixtures("heard_interrupts")
def test_a_lost_interrupt_ends_the_next_step() -> None:
    with interruptible(), progress.stage("work", 2) as bar:
        bar.advance()
        with contextlib.suppress(KeyboardInterrupt):  # as an import does that takes any error for "not installed"
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            bar.advance()
    heed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_somebody_else_stays() -> None:
    def own(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGINT, own)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
