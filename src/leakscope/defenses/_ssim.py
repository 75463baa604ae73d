"""Structural similarity, to differentiate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """Mean SSIM of pictures in [0, 1]: Gaussian window of 11 pixels, σ = 1.5, inside the borders.

    Pictures smaller than the window get the largest odd one that fits.
    """
    channels, side = truth.shape[1], min(truth.shape[2:])
    size = min(11, side - 1 + side % 2)
    offset = torch.arange(size, device=truth.device, dtype=truth.dtype) - size // 2
    bell = (-0.5 * (offset / 1.5).square()).exp()
    bell = bell / bell.sum()
    window = (bell[:, None] * bell).expand(channels, 1, size, size)

    def blurred(x: Tensor) -> Tensor:
        return F.conv2d(x, window, groups=channels)

    # E[x²] − E[x]² loses its digits far from 0 and does not depend on the origin, which is put in the middle.
    origin = truth.mean((2, 3), keepdim=True)
    guess, truth = guess - origin, truth - origin
    a, b = blurred(guess), blurred(truth)
    # A variance is not negative; rounding makes that of a flat picture so.
    aa = (blurred(guess.square()) - a.square()).clamp_min(0)
    bb = (blurred(truth.square()) - b.square()).clamp_min(0)
    ab = blurred(guess * truth) - a * b
    a, b = a + origin, b + origin
    bright, contrast = 0.01**2, 0.03**2
    value = (2 * a * b + bright) * (2 * ab + contrast) / ((a.square() + b.square() + bright) * (aa + bb + contrast))
    return value.mean()
