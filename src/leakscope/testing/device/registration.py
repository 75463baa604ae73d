"""Tells torch about the simulated device, and what it saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from torch import Tensor
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from leakscope.testing.device.build import Unavailable, library

NAME = "sim"
DEVICES = 2


@cache
def install() -> None:
    """Compile the device if need be, and make `torch.device("sim:0")` and `("sim:1")` usable in this process."""
    torch.ops.load_library(library())
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    generate_methods_for_privateuse1_backend(for_storage=True)


@cache
def unavailable() -> str | None:
    """Why there is no simulated device here, or None when there is one, now installed."""
    try:
        install()
    except Unavailable as error:
        return str(error)
    return None


@dataclass
class Counts:
    """What would have made a real accelerator wait for the host, or the host for it."""

    waits: int = 0  # .item(), bool(tensor), torch.equal, boolean masks, nonzero, …
    to_device: int = 0  # copies
    to_host: int = 0

    @property
    def round_trips(self) -> int:
        """Whatever stalls: waits, and copies in either direction."""
        return self.waits + self.to_device + self.to_host


@contextmanager
def counted() -> Iterator[Counts]:
    """Count until the end of the block; the yielded counts are filled in there."""
    seen, before = Counts(), _counts()
    try:
        yield seen
    finally:
        seen.waits, seen.to_device, seen.to_host = (b - a for a, b in zip(before, _counts(), strict=True))


@contextmanager
def without_float64() -> Iterator[None]:
    """The device refuses float64 with a TypeError until the end of the block, as Apple's GPUs do."""
    torch.ops.leakscope_sim.refuse_float64(True)
    try:
        yield
    finally:
        torch.ops.leakscope_sim.refuse_float64(False)


def _counts() -> list[int]:
    found: list[int] = torch.ops.leakscope_sim.counts()
    return found


class _Device(ModuleType):
    """`torch.sim`: what torch itself asks of the module of a device."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return DEVICES

    def current_device(self) -> int:
        return int(torch.accelerator.current_device_index())

    @contextmanager
    def device(self, device: int | str | torch.device) -> Iterator[None]:
        """Makes a device the current one until the end of the block."""
        before = torch._C._accelerator_exchangeDevice(self._index(device))
        try:
            yield
        finally:
            torch._C._accelerator_exchangeDevice(before)

    def synchronize(self, device: object = None) -> None:
        """Nothing to wait for: an operator has finished when it returns."""

    def manual_seed_all(self, seed: int) -> None:
        for index in range(DEVICES):
            self.set_rng_state(torch.Generator(f"{NAME}:{index}").manual_seed(seed).get_state(), index)

    def get_rng_state(self, device: int | str | torch.device = NAME) -> Tensor:
        state: Tensor = torch.ops.leakscope_sim.rng_state(self._index(device))
        return state

    def set_rng_state(self, state: Tensor, device: int | str | torch.device = NAME) -> None:
        torch.ops.leakscope_sim.set_rng_state(self._index(device), state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _index(self, device: int | str | torch.device) -> int:
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return self.current_device() if index is None else index


def _module() -> ModuleType:
    return _Device(f"torch.{NAME}")
