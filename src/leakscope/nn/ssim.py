"""Structural similarity: what metrics report, and what attacks and defences differentiate."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.devices import widened

WINDOW = 11
SIGMA = 1.5
C1, C2 = 0.01**2, 0.03**2  # (K·L)² with K₁ = 0.01, K₂ = 0.03 and data range L = 1


def _moving_average(length: int, window: int, like: Tensor) -> Tensor:
    """The matrix of a Gaussian moving average over `length` pixels, positions where it fits only."""
    offset = torch.arange(length, device=like.device) - torch.arange(length - window + 1, device=like.device)[:, None]
    distance = (offset - window // 2).to(like.dtype)
    weight = torch.exp(-distance.square() / (2 * SIGMA**2)) * ((offset >= 0) & (offset < window))
    return weight / weight.sum(1, keepdim=True)


def ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """Similarity at every position, image and channel where the window fits, in the precision of `a`."""
    height, width = a.shape[-2:]
    largest = min(height, width, WINDOW)
    window = largest - 1 + largest % 2  # the largest odd number that fits
    # E[x²] − E[x]² does not depend on the origin and loses its digits far from it; double has digits to spare.
    origin = a.new_zeros(()) if a.dtype == torch.float64 else b.mean((-2, -1), keepdim=True)
    a, b = a - origin, b - origin
    # Two small matrix products, A·X·Bᵀ, are the separable filter; at the sizes of this field they
    # outrun a convolution with one channel.
    rows, columns = (_moving_average(length, window, a) for length in (height, width))
    moments: Tensor = rows @ torch.stack((a, b, a * a, b * b, a * b)) @ columns.T
    mean_a, mean_b, aa, bb, ab = moments.unbind()
    covariance = ab - mean_a * mean_b
    variances = (aa - mean_a.square()) + (bb - mean_b.square())
    mean_a, mean_b = mean_a + origin, mean_b + origin
    luminance = (2 * mean_a * mean_b + C1) / (mean_a.square() + mean_b.square() + C1)
    return luminance * ((2 * covariance + C2) / (variances + C2))


def ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """SSIM of each picture in [0, 1], in double precision: N.

        SSIM = mean of (2μ_a μ_b + C₁)(2σ_ab + C₂) / ((μ_a² + μ_b² + C₁)(σ_a² + σ_b² + C₂))

    over channels and over the positions where the 11×11 Gaussian window (σ = 1.5) lies inside the picture; a
    smaller picture gets the largest odd window that fits. Wang et al., IEEE TIP 13(4), 2004.
    """
    return ssim_map(widened(guess), widened(truth)).flatten(1).mean(1)
