"""Chunks come from bytes; memory that runs out halves them, and the work goes on with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import chunks, progress
from leakscope.core.chunks import fitting, in_chunks, is_out_of_memory
from leakscope.core.errors import UsageError
from leakscope.core.metering import Cost, Meter, forward_only, measured, with_gradient


class Said:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def stage(self, name: str, total: int) -> AbstractContextManager[progress.Bar]:
        raise NotImplementedError


def test_the_meter_counts_what_is_held_at_one_time() -> None:
    x = torch.zeros(1000)
    with Meter() as meter:
        first = x + 1
        del first
        second = x + 2
        third = second * 3
        second.add_(1)  # in place: nothing new
        view = third[:10]  # nor is a view
    assert meter.peak == 2 * x.nbytes
    assert view.numel() == 10


def test_cost_is_fixed_and_per_picture() -> None:
    table = torch.zeros(500)
    cost = measured(lambda x: (table + 1, x + 1, x + 2), torch.zeros(1, 30))
    # `table + 1` is held until the tuple is: 2,000 bytes; two copies of a picture of 120 bytes.
    assert cost == Cost(fixed=2000, per_picture=240)


def test_gradients_cost_more_than_a_forward_pass() -> None:
    network = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])
    forward = measured(forward_only(network), torch.zeros(1, 64)).per_picture
    backward = measured(with_gradient(network), torch.zeros(1, 64)).per_picture
    assert forward == 2 * 64 * 4  # the input and the output of one layer at a time
    assert backward >= 6 * 64 * 4  # what every Tanh keeps


def test_memory_lowers_the_chunk_and_never_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step, picture = forward_only(lambda x: x + 1), torch.zeros(1, 250_000)  # a megabyte
    found = {}
    for free in (1_000, 10_000_000, 1_000_000_000):
        monkeypatch.setattr(chunks, "free_on", lambda device, free=free: free)
        found[free] = fitting(step, picture, most=64)
    assert found[1_000] == 1
    assert 2 <= found[10_000_000] <= 9
    assert found[1_000_000_000] == 64
    monkeypatch.setattr(chunks, "free_on", lambda device: 10_000_000)
    assert fitting(step, picture, most=64, kept=4) < found[10_000_000]


ERRORS: dict[str, Callable[[], Exception]] = {
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"),
    "mps": lambda: RuntimeError("MPS backend out of memory (MPS allocated: 3 GB)"),
    "python": MemoryError,
}


@pytest.mark.parametrize("error", ERRORS)
def test_out_of_memory_halves_the_chunk_and_goes_on(error: str) -> None:
    sizes: list[int] = []
    said = Said()

    def work(part: Tensor) -> Tensor:
        sizes.append(len(part))
        if len(part) > 3:
            raise ERRORS[error]()
        return part * 2

    rows = torch.arange(10.0)
    with progress.listening(said):
        found = torch.cat(list(in_chunks(work, rows, size=8, what="search")))
    assert torch.equal(found, rows * 2)
    assert sizes == [8, 4, 2, 2, 2, 2, 2]
    assert said.said == [f"search: out of memory; going on with {size} at once" for size in (4, 2)]


def test_a_repeated_part_draws_the_same_numbers() -> None:
    rng, full = torch.Generator().manual_seed(1), [True]

    def work(part: Tensor) -> Tensor:
        noise = torch.randn(1, generator=rng)
        if full and len(part) > 2:
            full.clear()
            raise MemoryError
        return part + noise

    first = next(in_chunks(work, torch.zeros(4), size=4, what="search", rngs=(rng,)))
    assert torch.equal(first, torch.randn(1, generator=torch.Generator().manual_seed(1)).expand(2))


def test_one_picture_that_does_not_fit_is_the_users_to_mend() -> None:
    def work(part: Tensor) -> Tensor:
        raise MemoryError

    with pytest.raises(UsageError, match="search: one picture does not fit into memory"):
        list(in_chunks(work, torch.zeros(4), size=4, what="search"))


def test_other_errors_are_not_taken_for_it() -> None:
    def work(part: Tensor) -> Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        list(in_chunks(work, torch.zeros(4), size=4, what="search"))
    assert not is_out_of_memory(ValueError("out of memory"))
