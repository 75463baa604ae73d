"""What may live on an accelerator: pictures that fit are copied there once, not batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.devices import free_on

#: Of what is free, the share that one set of pictures may take.
_SHARE = 0.25


def resident(x: Tensor, device: torch.device) -> Tensor:
    """x on the device if it takes at most a quarter of what is free there, else where it is."""
    if device.type == "cpu" or x.device == device:
        return x
    return x.to(device) if x.numel() * x.element_size() <= _SHARE * free_on(device) else x


def rows_of(x: Tensor, index: Tensor, device: torch.device) -> Tensor:
    """The rows `index` of what `resident` gave, on the device."""
    return x[index.to(x.device)].to(device)
