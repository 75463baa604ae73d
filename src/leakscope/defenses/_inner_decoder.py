"""The decoder of the inner attacker: any features to pictures."""

from __future__ import annotations

from math import ceil, gcd, log2, prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Normalise, ReLU, convolve, twice; plus a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(gcd(8, inputs), inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(gcd(8, outputs), outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        return total


class InnerDecoder(nn.Module):
    """Residual blocks, doublings up to the size of the picture, a sigmoid.

    Features without height and width pass a linear layer to a quarter of the picture's first.
    """

    def __init__(self, features: tuple[int, ...], picture: tuple[int, int, int], width: int, blocks: int) -> None:
        super().__init__()
        channels, height, rows = picture[0], picture[1], picture[2]
        self.size = (height, rows)
        if len(features) == 3:
            self.front: nn.Module = Residual(features[0], width)
            small = features[1]
        else:
            small = ceil(height / 4)
            shape = (width, small, ceil(rows / 4))
            self.front = nn.Sequential(nn.Flatten(), nn.Linear(prod(features), prod(shape)), nn.Unflatten(1, shape))
        doublings = max(0, ceil(log2(height / small)))
        self.body = nn.Sequential(
            nn.ReLU(),
            *(layer for _ in range(blocks) for layer in (Residual(width, width), nn.ReLU())),
            *(
                layer
                for _ in range(doublings)
                for layer in (nn.ConvTranspose2d(width, width, 4, 2, 1), nn.GroupNorm(8, width), nn.ReLU())
            ),
        )
        self.end = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.body(self.front(z))
        if x.shape[2:] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.end(x))
