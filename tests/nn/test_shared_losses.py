"""What an attack minimises is what the metric reports, and it keeps its digits in single precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.attacks._losses import Perceptual, one_minus_ssim
from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.nn.alexnet import FILE
from leakscope.nn.ssim import ssim_map
from leakscope.testing.synthetic import CPU, smooth_images


def test_the_ssim_loss_is_one_minus_the_metric() -> None:
    guess, truth = smooth_images(3, "guess", (3, 20, 24)), smooth_images(3, "truth", (3, 20, 24))
    metric = METRICS.build("ssim")
    assert isinstance(metric, Metric)
    values = metric(guess, truth, Reference(truth))
    assert one_minus_ssim(guess, truth).item() == pytest.approx(1 - values.mean().item(), abs=1e-6)


def test_ssim_of_bright_pictures_keeps_its_digits_in_single_precision() -> None:
    """E[x²] − E[x]² near 1 errs by 1e-7 in single precision; a faint texture has a variance of 1e-8."""
    truth = 0.99 + 1e-4 * smooth_images(2, "texture", (1, 24, 24))
    guess = truth.flip(3)
    exact = ssim_map(guess.double(), truth.double())
    torch.testing.assert_close(ssim_map(guess, truth).double(), exact, atol=1e-6, rtol=0)


def test_the_perceptual_loss_is_the_metric(shared_data: Path) -> None:
    guess, truth = smooth_images(2, "guess", (3, 32, 32)), smooth_images(2, "truth", (3, 32, 32))
    loss = Perceptual(str(shared_data / "weights" / FILE), CPU)
    metric = METRICS.build("lpips")
    assert isinstance(metric, Metric)
    assert torch.equal(loss.distance(guess, truth), metric(guess, truth, Reference(truth, shared_data)))
