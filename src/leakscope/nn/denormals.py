"""Gradients without denormal numbers, which processors compute with many times as slowly as with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Numbers below 10⁻³⁸ count as zero on this thread of the processor, until the end of the block.

    Far below zero the gradient of a GELU underflows, and such numbers slow every convolution behind it down: the
    backward pass of a correction whose activations had grown took eight times as long with them. For gradients of
    an attacker's own network alone. Whatever a client sends is read as it is: pictures were hidden in just such
    numbers.
    """
    if _are_zero() or not torch.set_flush_denormal(True):
        yield
        return
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _are_zero() -> bool:
    """Whether they count as zero already."""
    tiny = torch.full((1,), 1e-39, dtype=torch.float32, device="cpu")
    return not bool((tiny + tiny).item())
