"""How many pictures at once: from bytes, not from a constant; and fewer when memory runs out all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from leakscope.core import progress
from leakscope.core.devices import free_on
from leakscope.core.errors import UsageError
from leakscope.core.metering import measured

T = TypeVar("T")

#: What allocators say; only CUDA's error has a type of its own.
_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "allocate memory")


def fitting(step: Callable[[Tensor], object], example: Tensor, *, most: int, kept: int = 0) -> int:
    """How many pictures `step` may take at once where `example`, a batch of one, is: `most`, or what fits there.

    `most` is what is quickest, or what the numbers of a method depend on; memory only lowers it. `kept` tensors as
    large as a picture stay beside each (the memory of an optimiser).
    """
    own = kept * example.numel() * example.element_size()
    try:
        return measured(step, example).beside(own).fitting(free_on(example.device), most)
    except RuntimeError as error:
        # A network that cannot be measured may still run; what does not fit is halved then.
        return 1 if is_out_of_memory(error) else most


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def in_chunks(
    work: Callable[..., T], *rows: Tensor, size: int, what: str, rngs: Sequence[torch.Generator] = ()
) -> Iterator[T]:
    """`work` on `size` rows of the tensors at a time; after out-of-memory on half as many, from where it was.

    A repeated part draws the same numbers again from `rngs`. One row that does not fit is a UsageError.
    """
    at, count = 0, len(rows[0])
    while True:
        states = [rng.get_state() for rng in rngs]
        found, failed = _tried(work, [part[at : at + size] for part in rows])
        if failed is None:
            yield found[0]
            at += size
            if at >= count:
                return
            continue
        if min(size, count) <= 1:
            raise UsageError(f"{what}: one picture does not fit into memory ({failed}); take a smaller model or device")
        for rng, state in zip(rngs, states, strict=True):
            rng.set_state(state)
        size = max(1, min(size, count) // 2)
        _release_cache(rows[0].device)
        progress.say(f"{what}: out of memory; going on with {size} at once")


def _tried(work: Callable[..., T], parts: list[Tensor]) -> tuple[list[T], str | None]:
    """The result in a list, or why memory ran out; the error itself goes, for its frames hold what filled it."""
    try:
        return [work(*parts)], None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return [], (str(error).splitlines() or ["out of memory"])[0]


def _release_cache(device: torch.device) -> None:
    if device.type != "cpu":
        with suppress(RuntimeError, AttributeError):
            torch.get_device_module(device).empty_cache()
