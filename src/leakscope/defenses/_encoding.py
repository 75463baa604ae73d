"""Features of many pictures, without leaving a trace on the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from leakscope.core.model import SplitModel


@contextmanager
def deployed(split: SplitModel) -> Iterator[torch.device]:
    """The network in eval mode and without gradients for a while; gives the device it is on."""
    modes = {module: module.training for module in split.modules()}
    split.eval()
    try:
        with torch.no_grad():
            yield next(split.parameters()).device
    finally:
        for module, training in modes.items():
            module.training = training  # one by one: another defence may keep a layer frozen in eval mode


def flat_features(split: SplitModel, images: Tensor, batch: int = 256) -> Tensor:
    """Features of the network in eval mode, one row per picture, where the network is: N×D."""
    with deployed(split) as device:
        return torch.cat([split.encode(part.to(device)).flatten(1).float() for part in images.split(batch)])
