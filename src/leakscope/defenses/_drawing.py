"""Random tensors shaped like features."""

from __future__ import annotations

import torch
from torch import Tensor


def blank(z: Tensor, rng: torch.Generator | None) -> Tensor:
    """An unfilled tensor like `z`, where `rng` can fill it: a generator draws on its own device only."""
    return torch.empty(z.shape, dtype=z.dtype, device=z.device if rng is None else rng.device)


def refuse_idle(in_training: bool, at_release: bool) -> None:
    """A defence that is never applied is a mistake, and would be reported as if it had been."""
    if not (in_training or at_release):
        raise ValueError("in_training and at_release are both false, so it would do nothing; write none")
