"""How many pictures an attack on observed features works on at once."""

from __future__ import annotations

import torch

from leakscope.core.chunks import fitting
from leakscope.core.metering import with_gradient
from leakscope.core.threat import View


def at_once(view: View, most: int, *, kept: int = 0) -> int:
    """For attacks that differentiate the encoder; `kept` picture-sized tensors belong to each picture under way."""
    grey = torch.full((1, *view.image_shape), 0.5, device=view.device)
    return fitting(with_gradient(view.encoder), grey, most=most, kept=kept)
