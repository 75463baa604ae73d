"""Features of many pictures, without leaving a trace on the network."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.model import SplitModel


@torch.no_grad()
def flat_features(split: SplitModel, images: Tensor, batch: int = 256) -> Tensor:
    """Features of the network in eval mode, one row a picture, where the network is: N×D."""
    device = next(split.parameters()).device
    modes = {module: module.training for module in split.modules()}
    split.eval()
    try:
        parts = [split.encode(part.to(device)).flatten(1).float() for part in images.split(batch)]
    finally:
        for module, training in modes.items():
            module.training = training  # one by one: another defence may keep a layer frozen in eval mode
    return torch.cat(parts)
