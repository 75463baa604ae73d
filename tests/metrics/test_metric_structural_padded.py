"""The padded convention against its definition as a depthwise convolution with zero padding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.metric import Reference
from leakscope.metrics.structural_padded import PaddedStructuralSimilarity


def by_convolution(a: Tensor, b: Tensor) -> Tensor:
    """Spec §6: 11×11 Gaussian, σ = 1.5, zero padding 5, mean over map and channels."""
    channels = a.shape[1]
    line = torch.exp(-((torch.arange(11.0, dtype=torch.float64) - 5) ** 2) / (2 * 1.5**2))
    line = line / line.sum()
    window = (line[:, None] * line).expand(channels, 1, 11, 11)

    def blurred(x: Tensor) -> Tensor:
        return F.conv2d(x, window, padding=5, groups=channels)

    mean_a, mean_b = blurred(a), blurred(b)
    var_a, var_b = blurred(a * a) - mean_a**2, blurred(b * b) - mean_b**2
    both = blurred(a * b) - mean_a * mean_b
    ratio = (2 * mean_a * mean_b + 1e-4) * (2 * both + 9e-4)
    return (ratio / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))).flatten(1).mean(1)


def test_equals_a_convolution_with_zero_padding() -> None:
    rng = torch.Generator().manual_seed(0)
    for shape in ((5, 3, 32, 32), (4, 1, 28, 28), (3, 1, 6, 9)):
        truth = torch.rand(shape, generator=rng)
        guess = (truth + 0.2 * torch.randn(shape, generator=rng)).clamp(0, 1)
        score = PaddedStructuralSimilarity()(guess, truth, Reference(truth))
        torch.testing.assert_close(score, by_convolution(guess.double(), truth.double()).float(), atol=1e-6, rtol=0)
