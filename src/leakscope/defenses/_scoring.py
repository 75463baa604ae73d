"""The layer that gives the scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.core.model import SplitModel
from leakscope.defenses._encoding import deployed


def scoring_layer(split: SplitModel, example: Tensor) -> str | None:
    """The name of the last linear layer to run, if its output has the shape of the scores."""
    ran: list[tuple[str, torch.Size]] = []
    handles = [
        module.register_forward_hook(lambda own, args, out, name=name: ran.append((name, out.shape)))
        for name, module in split.model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with deployed(split) as device:
            scores = split.run(example.to(device)).scores
    finally:
        for handle in handles:
            handle.remove()
    return ran[-1][0] if ran and ran[-1][1] == scores.shape else None
