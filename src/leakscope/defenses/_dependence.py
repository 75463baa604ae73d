"""How much two samples depend on each other, from their kernel matrices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.devices import widened


def gaussian_kernel(values: Tensor, sigma: float) -> Tensor:
    """exp(−‖a − b‖² / (2σ²·dim)) of every two rows, in double precision: m×m."""
    flat = widened(values.flatten(1))
    flat = flat - flat.mean(0)  # distances stay, and fewer digits cancel
    norms = flat.square().sum(1)
    squared = (norms[:, None] + norms[None] - 2 * flat @ flat.T).clamp_min(0)
    return (-squared / (2 * sigma**2 * flat.shape[1])).exp()


def label_kernel(y: Tensor, classes: int) -> Tensor:
    """1 for two samples of one class, 0 for others: the linear kernel of one-hot labels."""
    onehot = widened(F.one_hot(y, classes))
    return onehot @ onehot.T


def centring(size: int, like: Tensor) -> Tensor:
    """H = I − 1/m."""
    return torch.eye(size, dtype=like.dtype, device=like.device) - 1 / size
