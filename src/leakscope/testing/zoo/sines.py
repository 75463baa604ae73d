"""A fake with nothing to undo: waves too short for lines and descents to find back, and a server trained on them.

z = sin(k W x) holds the picture many times over, since every small change moves it, and no noise is there to hide any.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet

_WAVES, _PER_UNIT = 512, 11.0
_HIDDEN, _EPOCHS, _BATCH = 256, 60, 64
_SHAKEN = 0.02


class Waves(nn.Module):
    """Sines of random sums of pixels."""

    weight: Tensor

    def __init__(self, pixels: int) -> None:
        super().__init__()
        rng = seeds.generator(0, "zoo", "waves")
        self.register_buffer("weight", _PER_UNIT * torch.randn(pixels, _WAVES, generator=rng) / pixels**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.weight).sin()


def waves(pictures: ImageSet) -> nn.Sequential:
    """Client, and a server trained on what it sends of `pictures`."""
    client = Waves(pictures.images[0].numel())
    with seeds.ambient(0, "zoo", "waves"):
        server = nn.Sequential(nn.Linear(_WAVES, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, len(pictures.classes)))
        optimizer = torch.optim.AdamW(server.parameters(), 2e-3, weight_decay=0.05)
        for _ in range(_EPOCHS):
            for index in torch.randperm(len(pictures.images)).split(_BATCH):
                images = pictures.images[index]
                shaken = images + _SHAKEN * torch.randn_like(images)
                loss = F.cross_entropy(server(client(shaken)), pictures.labels[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return nn.Sequential(OrderedDict(client=client, server=server)).eval().requires_grad_(False)
