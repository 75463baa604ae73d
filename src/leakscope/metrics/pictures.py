"""What every metric checks before it computes: a wrong range gives plausible, wrong numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.devices import widened

#: How far rounding may carry a pixel out of [0, 1].
TOLERANCE = 1e-4


def require_alike(guess: Tensor, truth: Tensor) -> None:
    """Refuse pairs that cannot be compared: other shapes, no images, NaN or infinity."""
    if truth.ndim != 4 or guess.shape != truth.shape:
        raise ValueError(
            f"guess {tuple(guess.shape)} and truth {tuple(truth.shape)} must have one N×C×H×W shape; "
            "resize or select before measuring"
        )
    if truth.numel() == 0:
        raise ValueError(f"nothing to measure: the pictures have shape {tuple(truth.shape)}")
    for which, images in (("guess", guess), ("truth", truth)):
        if not images.is_floating_point():
            raise ValueError(f"{which} is {images.dtype}; pictures are float in [0, 1]: divide 8-bit pixels by 255")
        bad = int((~images.isfinite().flatten(1).all(1)).sum())
        if bad:
            raise ValueError(f"{which} has NaN or infinite pixels in {bad} of {len(images)} pictures")


def require_pictures(guess: Tensor, truth: Tensor) -> None:
    """`require_alike`, and pixels in [0, 1]: scores that assume a range are meaningless outside it."""
    require_alike(guess, truth)
    for which, images in (("guess", guess), ("truth", truth)):
        low, high = (float(end) for end in images.aminmax())
        if low < -TOLERANCE or high > 1 + TOLERANCE:
            raise ValueError(
                f"{which} has pixels in [{low:.4g}, {high:.4g}]; metrics take [0, 1]: "
                "undo the normalisation or clamp first"
            )


def require_points_or_pictures(guess: Tensor, truth: Tensor) -> None:
    """`require_pictures`, except that N×D×1×1 are points (the `gaussians` set), which have no range."""
    if truth.ndim == 4 and truth.shape[2:] == (1, 1):
        require_alike(guess, truth)
    else:
        require_pictures(guess, truth)


def squared_error(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_i‖² for each image i."""
    return torch.sum((widened(a) - widened(b)).square().flatten(1), dim=1)
