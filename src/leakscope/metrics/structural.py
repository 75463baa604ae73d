"""Structural similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.devices import widened
from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.pictures import require_pictures

WINDOW = 11
SIGMA = 1.5
C1, C2 = 0.01**2, 0.03**2  # (K·L)² with K₁ = 0.01, K₂ = 0.03 and data range L = 1
#: Pixels worked on at once; five maps of each are held in double precision.
PIXELS_AT_ONCE = 4_000_000


def _moving_average(length: int, window: int, like: Tensor) -> Tensor:
    """The matrix of a Gaussian moving average over `length` pixels, positions where it fits only."""
    offset = torch.arange(length, device=like.device) - torch.arange(length - window + 1, device=like.device)[:, None]
    distance = (offset - window // 2).to(like.dtype)
    weight = torch.exp(-distance.square() / (2 * SIGMA**2)) * ((offset >= 0) & (offset < window))
    return weight / weight.sum(1, keepdim=True)


def ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """Similarity at every position, image and channel where the window fits."""
    height, width = a.shape[-2:]
    largest = min(height, width, WINDOW)
    window = largest - 1 + largest % 2  # the largest odd number that fits
    # Two small matrix products, A·X·Bᵀ, are the separable filter; at the sizes of this field they
    # outrun a convolution with one channel.
    rows, columns = (_moving_average(length, window, a) for length in (height, width))
    moments: Tensor = rows @ torch.stack((a, b, a * a, b * b, a * b)) @ columns.T
    mean_a, mean_b, aa, bb, ab = moments.unbind()
    covariance = ab - mean_a * mean_b
    variances = (aa - mean_a.square()) + (bb - mean_b.square())
    luminance = (2 * mean_a * mean_b + C1) / (mean_a.square() + mean_b.square() + C1)
    return luminance * ((2 * covariance + C2) / (variances + C2))


@METRICS.register("ssim")
@dataclass(frozen=True)
class StructuralSimilarity(Metric):
    """Structural similarity of one image, in [−1, 1] (Wang et al., IEEE TIP 13(4), 2004).

        SSIM = mean of (2μ_a μ_b + C₁)(2σ_ab + C₂) / ((μ_a² + μ_b² + C₁)(σ_a² + σ_b² + C₂))

    over channels and over the positions where the 11×11 Gaussian window (σ = 1.5) lies inside the
    image; biased moments, data range 1. It equals scikit-image's `structural_similarity` with
    `gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1`.

    A picture smaller than 11 pixels gets the largest odd window that fits, with the same σ.

    Published numbers differ in what they do at the border. CEM pads with zeros and torchmetrics by
    reflection, and both average over the border too; on pictures with an empty border, such as
    MNIST, that moves the score by tenths. MixCon clips at 0; here the sign is kept.
    """

    more_leak: ClassVar[Literal["high", "low"]] = "high"

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        at_once = max(1, PIXELS_AT_ONCE // truth[0].numel())
        parts = zip(guess.split(at_once), truth.split(at_once), strict=True)
        return torch.cat([ssim_map(widened(a), widened(b)).flatten(1).mean(1) for a, b in parts]).float()
