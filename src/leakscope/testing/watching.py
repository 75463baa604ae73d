"""Tripwires: a view that refuses to be opened, and a network that counts what it is shown."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from torch import Tensor

from leakscope.core import threat
from leakscope.core.errors import NotGranted
from leakscope.core.model import SplitModel
from leakscope.core.threat import View
from leakscope.testing.synthetic import small_split

#: What a view offers; all else about it is its own.
OFFERED = frozenset(name for name in vars(View) if not name.startswith("_")) | {
    field.name for field in dataclasses.fields(View) if not field.name.startswith("_")
}


class WatchedView(View):
    """Reading anything but what a view offers raises `NotGranted`, from wherever it is read but its own methods."""

    def __getattribute__(self, name: str) -> Any:
        own = name.startswith("__") or sys._getframe(1).f_globals.get("__name__") == threat.__name__
        if not own and name not in OFFERED:
            raise NotGranted(f"{name} is no part of a view; it offers: {', '.join(sorted(OFFERED))}")
        return super().__getattribute__(name)


def watched(view: View) -> View:
    """The same view, watched."""
    return WatchedView(**vars(view))


class Shown:
    """Pictures shown to a network; copies of the network share it."""

    def __init__(self) -> None:
        self.pictures = 0

    def __deepcopy__(self, memo: object) -> Shown:
        return self


class CountingSplit(SplitModel):
    """Counts the pictures of every forward pass, whoever makes it."""

    shown: Shown

    def _forward(self, x: Tensor, *args: Any) -> Tensor:
        self.shown.pictures += len(x)
        return super()._forward(x, *args)


def counting_split() -> CountingSplit:
    """The small network, counting."""
    plain = small_split()
    split = CountingSplit(plain.model, plain.cut, normalize=plain.normalize, defense=plain.defense)
    split.shown = Shown()
    return split.eval()
