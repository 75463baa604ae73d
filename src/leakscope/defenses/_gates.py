"""Gated attention pooling over the samples of a class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.defenses._classes import Groups


def hidden_width(width: int) -> int:
    """min(512, max(64, ⌊D/4⌋)), as published."""
    return min(512, max(64, width // 4))


class GatedPool(nn.Module):
    """α = softmax over a class of wᵀ(tanh(W_V x) ⊙ sigmoid(W_U x)), x the normalised feature."""

    def __init__(self, width: int, *, affine: bool) -> None:
        super().__init__()
        hidden = hidden_width(width)
        self.norm = nn.LayerNorm(width, elementwise_affine=affine)
        self.value = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)  # a softmax does not see a bias

    def weights(self, x: Tensor, classes: Groups) -> Tensor:
        """From normalised features N×D to weights N, summing to 1 over each class."""
        logits: Tensor = self.score(self.value(x).tanh() * self.gate(x).sigmoid())
        return classes.softmax(logits.squeeze(1).float())


def weighted_variance(x: Tensor, weights: Tensor, classes: Groups) -> Tensor:
    """Σ α (x − Σ α x)² of each class: C×D."""
    mean = classes.sum(weights[:, None] * x)
    return classes.sum(weights[:, None] * (x - mean[classes.index]).square())


def effective_share(weights: Tensor, classes: Groups) -> Tensor:
    """1 / (M Σ α²) of each class: 1 when all M samples count alike, 1/M when one counts alone."""
    with torch.no_grad():
        return 1 / (classes.count * classes.sum(weights.square())).clamp_min(1e-12)
