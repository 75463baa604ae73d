"""Random numbers by name: every stage draws from its own generator, none from a global seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on the whole path of names, not only on the last."""
    path = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one named stage: `generator(0, "attack", "decoder", "batches")`."""
    return torch.Generator(device=device).manual_seed(derive(seed, *names))


@contextmanager
def ambient(seed: int, *names: str | int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run code that draws from torch's ambient generators (layer initialisation, `nn.Dropout`).

    The generator of the CPU is seeded, and that of `device` where the code draws there too. Both are put
    back on leaving, so nothing outside sees a difference. No other device is touched: looking at the
    generator of a GPU opens a context on it, which takes memory from whoever works there.
    """
    device, own = torch.device(device), derive(seed, *names)
    cpu = torch.default_generator.get_state()
    there = None if device.type == "cpu" else _ambient_state(device)
    try:
        torch.default_generator.manual_seed(own)
        if there is not None:
            _set_ambient_state(device, torch.Generator(device).manual_seed(own).get_state())
        yield
    finally:
        torch.default_generator.set_state(cpu)
        if there is not None:
            _set_ambient_state(device, there)


def _ambient_state(device: torch.device) -> torch.Tensor:
    module = torch.get_device_module(device)
    state: torch.Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


def _set_ambient_state(device: torch.device, state: torch.Tensor) -> None:
    module = torch.get_device_module(device)
    module.set_rng_state(state) if device.type == "mps" else module.set_rng_state(state, device)
