"""What a computation takes of memory, counted in bytes of live tensors: the same on every device."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Meter(TorchDispatchMode):
    """`with Meter() as meter: …; meter.peak`: the most bytes that tensors made inside held at one time.

    Scratch memory of kernels (workspaces of convolutions) is not seen; `Cost.room` allows for it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for made in tree_iter(found):
            if isinstance(made, Tensor):
                self._note(made)
        return found

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or size == 0:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


@dataclass(frozen=True)
class Cost:
    """Bytes that a computation takes: for itself, and for each picture of its batch."""

    fixed: int
    per_picture: int

    def beside(self, per_picture: int) -> Cost:
        """With so many more bytes for each picture."""
        return Cost(self.fixed, self.per_picture + per_picture)

    def fitting(self, free: int, most: int) -> int:
        """How many pictures fit into `free` bytes at once: at least one, at most `most`."""
        room = _USED * free / _SCRATCH - self.fixed
        return max(1, min(most, int(room // max(self.per_picture, 1))))


_SCRATCH = 1.5  # workspaces and fragments, on top of what tensors hold
_USED = 0.6  # of what is free: other processes and what comes later need some too


def measured(step: Callable[[Tensor], object], example: Tensor) -> Cost:
    """What `step` takes for a batch, from one picture and from two; `example` is a batch of one."""
    peaks = []
    for count in (1, 2):
        batch = example.expand(count, *example.shape[1:]).clone()
        with Meter() as meter:
            step(batch)
        peaks.append(meter.peak)
    per_picture = max(1, peaks[1] - peaks[0])
    return Cost(max(0, peaks[0] - per_picture), per_picture)


def with_gradient(network: Callable[[Tensor], Tensor]) -> Callable[[Tensor], object]:
    """A forward and a backward pass to the pictures, which is what a search by gradients takes."""

    def step(batch: Tensor) -> object:
        with torch.enable_grad():
            x = batch.detach().requires_grad_()
            out = network(x)
            return torch.autograd.grad(out.float().square().sum(), x, allow_unused=True) if out.requires_grad else None

    return step


def forward_only(network: Callable[[Tensor], Tensor]) -> Callable[[Tensor], object]:
    """A forward pass."""

    def step(batch: Tensor) -> object:
        with torch.no_grad():
            return network(batch)

    return step
