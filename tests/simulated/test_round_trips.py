"""How often an attack makes the accelerator wait for the host: for a person who watches, and hardly otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leakscope.core import progress
from leakscope.testing import device

from . import methods
from .test_attacks import OnDevice, ResidualOnDevice, built

#: Waits and copies of an attack beyond one for each update of its progress bar: pictures in, pictures and notes out.
ALLOWED = 20


class Watcher:
    """Counts updates of progress."""

    def __init__(self) -> None:
        self.updates = 0

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.updates += 1

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Watcher]:
        yield self

    def say(self, text: str) -> None:
        pass


def round_trips(name: str) -> tuple[device.Counts, int]:
    """What one attack costs, its prior being fitted already, and how often it told its progress."""
    attack, suite = built(name), ResidualOnDevice() if name in methods.RESIDUAL else OnDevice()
    view, seen, watcher = suite.view(attack.needs), suite.seen(attack), Watcher()
    if hasattr(attack, "prior"):
        view.prior(attack.prior)
    with progress.listening(watcher), device.counted() as counts:
        prepared = attack.prepare(view, suite.rng(0, "prepare"))
        attack.reconstruct(view, prepared, seen, suite.rng(0, "reconstruct"))
    return counts, watcher.updates


@pytest.mark.parametrize("name", methods.ATTACKS)
def test_an_attack_seldom_waits(name: str) -> None:
    counts, updates = round_trips(name)
    what, limit = f"{counts}, {updates} updates of progress", ALLOWED + updates
    assert counts.round_trips <= limit, what
