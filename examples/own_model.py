"""Your own network for `leakscope audit --model examples/own_model.py:build --cut features.3`.

Any `nn.Module` from pixels in [0, 1] to class scores will do; nothing here knows Leakscope. The
function takes whichever of `image_shape`, `classes`, `num_classes`, `channels` and `in_channels`
it wants, or nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SmallColourNet(nn.Module):
    """Three convolutions for small pictures."""

    def __init__(self, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),  # features.3: a natural cut
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),  # features.7: a later one
            nn.Conv2d(64, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.features(x)
        return self.classifier(torch.mean(maps, dim=(2, 3)))


def build(channels: int = 3, classes: int = 10) -> nn.Module:
    """The network with fresh weights; Leakscope fills in those of `--weights`."""
    return SmallColourNet(channels, classes)
