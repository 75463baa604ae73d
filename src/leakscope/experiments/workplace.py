"""The store and the device of a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakscope.store import Store


@dataclass(frozen=True)
class Workplace:
    """The store that keeps what is done, and the device that does it."""

    store: Store
    device: torch.device
