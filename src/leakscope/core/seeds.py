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
def ambient(seed: int, *names: str | int) -> Iterator[None]:
    """Run code that draws from torch's ambient generator (layer initialisation, `nn.Dropout`).

    The ambient state, on every CUDA device too, is put back on leaving, so nothing outside sees a
    difference.
    """
    with torch.random.fork_rng():
        torch.manual_seed(derive(seed, *names))
        yield
