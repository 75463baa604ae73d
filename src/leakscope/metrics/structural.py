"""Structural similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.pictures import require_pictures
from leakscope.nn.ssim import ssim

#: Pixels worked on at once; five maps of each are held in double precision.
PIXELS_AT_ONCE = 4_000_000


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
    limits: ClassVar[tuple[float | None, float | None]] = (-1.0, 1.0)

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        at_once = max(1, PIXELS_AT_ONCE // truth[0].numel())
        parts = zip(guess.split(at_once), truth.split(at_once), strict=True)
        return torch.cat([ssim(a, b) for a, b in parts]).float()
