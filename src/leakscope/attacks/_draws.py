"""Random numbers that a class draws for itself, so that it gets the same ones alone and in a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core import seeds


def seed_from(rng: torch.Generator) -> int:
    """One number of a generator, to name others by; how many others does not matter to it."""
    return int(torch.randint(2**62, (1,), generator=rng, device=rng.device))


class ClassDraws:
    """One generator for each class, seeded by the class; draws are made on the CPU, the same for any device.

    With `restarts`, one for each restart of each class, class-major.
    """

    def __init__(self, seed: int, stage: str, classes: Tensor, device: torch.device, restarts: int = 1) -> None:
        self._rngs = [
            seeds.generator(seed, stage, label, restart) for label in classes.tolist() for restart in range(restarts)
        ]
        self._device = device

    def __len__(self) -> int:
        return len(self._rngs)

    def normal(self, *shape: int, rows: Tensor | None = None) -> Tensor:
        """classes×shape from N(0, 1); with `rows`, only those classes draw."""
        return torch.stack([torch.randn(*shape, generator=rng) for rng in self._chosen(rows)]).to(self._device)

    def uniform(self, *shape: int, rows: Tensor | None = None) -> Tensor:
        """classes×shape from U(0, 1); with `rows`, only those classes draw."""
        return torch.stack([torch.rand(*shape, generator=rng) for rng in self._chosen(rows)]).to(self._device)

    def _chosen(self, rows: Tensor | None) -> list[torch.Generator]:
        return self._rngs if rows is None else [self._rngs[row] for row in rows.tolist()]
