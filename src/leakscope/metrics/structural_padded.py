"""Structural similarity as CEM's code takes it: the border counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.pictures import require_pictures
from leakscope.metrics.structural import PIXELS_AT_ONCE
from leakscope.nn.ssim import WINDOW, ssim


@METRICS.register("ssim-padded")
@dataclass(frozen=True)
class PaddedStructuralSimilarity(Metric):
    """Structural similarity over every pixel of pictures that lie on black: the convention of CEM's code.

    The formula of `ssim`, with both pictures padded by five black pixels so that the 11×11 window has a
    place at every pixel. Two pictures agree on the padding, which moves the score near the border toward 1.
    For comparison with Xia et al., "CEM", 2025, only.
    """

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (-1.0, 1.0)

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        at_once = max(1, PIXELS_AT_ONCE // truth[0].numel())
        border = (WINDOW // 2,) * 4
        parts = zip(guess.split(at_once), truth.split(at_once), strict=True)
        return torch.cat([ssim(F.pad(a, border), F.pad(b, border)) for a, b in parts]).float()
