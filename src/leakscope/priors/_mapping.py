"""The mapping network z ↦ w."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.priors._modulation import ScaledLinear, activated, normalized


class Mapping(nn.Module):
    """Linear layers `fc0`, `fc1`, … each with √2·LeakyReLU(0.2); `w_avg` is the mean style."""

    w_avg: Tensor

    def __init__(self, latent: int, style: int, depth: int, rate: float = 0.01) -> None:
        super().__init__()
        self.depth = depth
        for number in range(depth):
            self.add_module(f"fc{number}", ScaledLinear(style if number else latent, style, rate=rate))
        self.register_buffer("w_avg", torch.zeros(style))

    def forward(self, z: Tensor) -> Tensor:
        w = normalized(z)
        for number in range(self.depth):
            w = activated(self.get_submodule(f"fc{number}")(w))
        return w

    def truncated(self, z: Tensor, truncation: float) -> Tensor:
        """w̄ + ψ(w − w̄)."""
        return torch.lerp(self.w_avg, self(z), truncation)
