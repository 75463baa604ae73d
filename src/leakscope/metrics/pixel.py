"""Pixel by pixel: mean squared error, PSNR, cosine, and the headline `leak`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.devices import widened
from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.pictures import require_pictures, require_points_or_pictures, squared_error

#: What an exact image scores, so that one lucky image does not make a mean infinite. It is reached at
#: an error of 10⁻¹⁰, a tenth of a thousandth of one 8-bit step.
PSNR_CAP = 100.0


@METRICS.register("mse")
@dataclass(frozen=True)
class MeanSquaredError(Metric):
    """Mean squared error of the pixels of one image: ‖x − x̂‖² / (C·H·W)."""

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    of_points: ClassVar[bool] = True

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_points_or_pictures(guess, truth)
        return (squared_error(guess, truth) / truth[0].numel()).float()


@METRICS.register("psnr")
@dataclass(frozen=True)
class PeakSignalToNoise(Metric):
    """Peak signal-to-noise ratio of one image, peak 1: −10·log₁₀ MSE decibels, at most 100.

    The logarithm is taken for each image. Averaging it is not the logarithm of an average: the
    pooled value −10·log₁₀(mean MSE) of Xia et al. (CEM, 2025) is never larger (Jensen).
    """

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        error = squared_error(guess, truth) / truth[0].numel()
        return (-10 * error.clamp_min(10 ** (-PSNR_CAP / 10)).log10()).float()


@METRICS.register("cosine")
@dataclass(frozen=True)
class CosineSimilarity(Metric):
    """Cosine of the raw pixel vectors, ⟨x, x̂⟩ / (‖x‖·‖x̂‖): MixCon's MCS before its mean (Li et al., 2020).

    Nothing is subtracted, so pictures, whose pixels are not negative, score above 0 whatever the
    guess: read it against its floor. A zero vector has no direction: two of them score 1, one 0.
    """

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (-1.0, 1.0)
    of_points: ClassVar[bool] = True

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_points_or_pictures(guess, truth)
        a, b = widened(guess).flatten(1), widened(truth).flatten(1)
        lengths = torch.linalg.vector_norm(a, dim=1), torch.linalg.vector_norm(b, dim=1)
        # Each is scaled to length 1 first: the product of two tiny lengths would underflow.
        tiny = torch.finfo(a.dtype).tiny
        a, b = (v / length.clamp_min(tiny)[:, None] for v, length in zip((a, b), lengths, strict=True))
        both_zero = (lengths[0] == 0) & (lengths[1] == 0)
        return torch.where(both_zero, 1.0, (a * b).sum(1)).clamp(-1, 1).float()


@METRICS.register("leak")
@dataclass(frozen=True)
class Leak(Metric):
    """The share of pixel variance recovered beyond what the label alone tells.

    With x̄_i the mean public picture of the class of image i,

        leak_i = 1 − ‖x_i − x̂_i‖² / v,    v = (1/N)·Σ_j ‖x_j − x̄_j‖².

    v is one number for the set, so that the mean over images is the headline of the audit exactly:

        (1/N)·Σ_i leak_i = 1 − (1/N)·Σ_i ‖x_i − x̂_i‖² / ((1/N)·Σ_j ‖x_j − x̄_j‖²)
                         = 1 − Σ‖x − x̂‖² / Σ‖x − x̄‖².

    (A mean of ratios with a v_i for each image would not be, and would be ruled by the images that
    happen to lie near their class mean.) A perfect guess scores 1; the class mean scores 0 on
    average, over the same images; worse guesses score below 0, without limit.

    When v = 0 every image is the mean of its class: the label tells all, nothing is left to leak,
    and every image scores 0.
    """

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    of_points: ClassVar[bool] = True

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_points_or_pictures(guess, truth)
        class_mean = reference.class_mean.to(truth.device)
        require_points_or_pictures(class_mean, truth)
        beyond_label = squared_error(truth, class_mean).mean()
        if beyond_label == 0:
            return torch.zeros(len(truth), device=truth.device)
        return (1 - squared_error(guess, truth) / beyond_label).float()
