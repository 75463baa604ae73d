"""Fewer digits where they suffice: bfloat16 and TF32 for networks that are trained, and compiled networks.

A method that trains a network has the fields `precision` and `compiled`; they are part of its key, for they change
numbers. What is learnt is kept, judged and applied in float32. A device without the precision computes in float32
and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakscope.core import progress

Precision = Literal["float32", "tf32", "bf16"]


@contextmanager
def computing(precision: Precision, device: torch.device) -> Iterator[None]:
    """Forward passes inside use the precision; losses and penalties should be made of `.float()`."""
    if precision == "float32" or not _there(precision, device.type):
        yield
    elif precision == "bf16":
        # Not cached: an optimiser may step inside, and casts of the weights before it must not outlive that.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            yield
    else:
        with _tf32():
            yield


def exactly(device: torch.device) -> torch.autocast:
    """A part of such a pass that needs float32: penalties of gradients, for one."""
    return torch.autocast(device.type, enabled=False)


def compiled(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network compiled by `torch.compile`, its weights shared; what cannot be compiled runs as it is."""
    torch._dynamo.config.suppress_errors = True
    found: Any = torch.compile(network)
    return lambda x: found(x)


@lru_cache
def _there(precision: Precision, kind: str) -> bool:
    """Whether devices of a kind have the precision here; says so once if not."""
    if precision == "tf32":
        found = kind == "cuda" and torch.cuda.get_device_capability()[0] >= 8
    else:
        found = torch.amp.autocast_mode.is_autocast_available(kind)
        found = found and (kind != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False))
    if not found:
        progress.say(f"{kind} has no {precision} here: float32 is used")
    return bool(found)


@contextmanager
def _tf32() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
