"""Random numbers that a class draws for itself, so that it gets the same ones alone and in a batch."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.devices import look_every


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
        self._ready: deque[Tensor] = deque()  # drawn ahead, on the device
        self._rounds = 0  # still to be drawn ahead, `_block` at a time
        self._block = 1
        self._shapes: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self._rngs)

    def normal(self, *shape: int, rows: Tensor | None = None) -> Tensor:
        """classes×shape from N(0, 1); with `rows`, only those classes draw."""
        if self._ready or self._rounds:
            return self._next(shape, rows)
        return torch.stack([torch.randn(*shape, generator=rng) for rng in self._chosen(rows)]).to(self._device)

    def uniform(self, *shape: int) -> Tensor:
        """classes×shape from U(0, 1)."""
        return torch.stack([torch.rand(*shape, generator=rng) for rng in self._rngs]).to(self._device)

    def uniforms(self, shapes: tuple[tuple[int, ...], ...], rows: Tensor) -> list[Tensor]:
        """For each shape classes×shape from U(0, 1), of the classes `rows` only, in one copy."""
        drawn = [torch.cat([torch.rand(*own, generator=rng).flatten() for own in shapes]) for rng in self._chosen(rows)]
        parts = torch.stack(drawn).to(self._device).split([math.prod(own) for own in shapes], 1)
        return [part.unflatten(1, own).contiguous() for part, own in zip(parts, shapes, strict=True)]

    def ahead(self, rounds: int, *shapes: tuple[int, ...]) -> None:
        """Announce that `normal` is asked for these shapes in turn, `rounds` times over.

        The numbers are the same; an accelerator gets them in few copies. A CPU needs none, so there nothing happens.
        """
        if self._device.type != "cpu" and shapes:
            self._rounds, self._shapes, self._block = rounds, shapes, look_every(self._device, rounds)

    def _next(self, shape: tuple[int, ...], rows: Tensor | None) -> Tensor:
        if not self._ready:
            block = min(self._block, self._rounds)
            self._rounds -= block
            wanted = [own for _ in range(block) for own in self._shapes]
            drawn = [torch.cat([torch.randn(*own, generator=rng).flatten() for own in wanted]) for rng in self._rngs]
            parts = torch.stack(drawn).to(self._device).split([math.prod(own) for own in wanted], 1)
            self._ready.extend(part.unflatten(1, own) for part, own in zip(parts, wanted, strict=True))
        found = self._ready.popleft()
        assert tuple(found.shape[1:]) == shape, f"announced {tuple(found.shape[1:])}, asked for {shape}"
        return found if rows is None else found[rows]

    def _chosen(self, rows: Tensor | None) -> list[torch.Generator]:
        return self._rngs if rows is None else [self._rngs[row] for row in rows.tolist()]
