"""What every registered metric must do, whatever it measures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Metric, Reference

WITHOUT_FILE = ["mse", "psnr", "ssim", "cosine", "leak", "psim:random-conv", "fid:random-conv", "fid:pixels"]
WITH_FILE = ["lpips", "psim:alexnet", "fid:alexnet"]


def build(spec: str) -> Metric:
    """A metric that compares pictures; measures of identities share the register."""
    metric = METRICS.build(spec)
    assert isinstance(metric, Metric)
    return metric


def pictures(n: int = 24, channels: int = 3, side: int = 24) -> Tensor:
    coarse = torch.rand(n, channels, 6, 6, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=(side, side), mode="bilinear")


def noisy(images: Tensor, sigma: float) -> Tensor:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    return (images + sigma * noise).clamp(0, 1)


def reference(truth: Tensor, root: Path | None = None) -> Reference:
    return Reference(class_mean=truth.mean(0, keepdim=True).expand_as(truth), root=root)


def test_the_metrics_of_the_issue_are_registered() -> None:
    assert set(METRICS) >= {"mse", "psnr", "ssim", "cosine", "leak", "lpips", "psim", "fid", "identity"}


@pytest.mark.parametrize("spec", WITHOUT_FILE + WITH_FILE)
def test_more_noise_leaks_less_and_nothing_is_changed(spec: str, stand_in_root: Path) -> None:
    metric, truth = build(spec), pictures()
    assert metric.unavailable(stand_in_root) is None
    before = truth.clone()
    means = []
    for sigma in (0.0, 0.05, 0.2, 0.6):
        guess = noisy(truth, sigma)
        kept = guess.clone()
        values = metric(guess, truth, reference(truth, stand_in_root))
        assert values.shape == (() if metric.of_set else (len(truth),))
        assert values.isfinite().all()
        assert values.dtype == torch.float32
        assert not values.requires_grad
        torch.testing.assert_close(guess, kept, rtol=0, atol=0)
        means.append(float(values.mean()))
    torch.testing.assert_close(truth, before, rtol=0, atol=0)
    towards_leak = 1 if metric.more_leak == "high" else -1
    assert all(towards_leak * (near - far) > 0 for near, far in pairwise(means)), means


@pytest.mark.parametrize("spec", WITHOUT_FILE + WITH_FILE)
def test_values_belong_to_images(spec: str, stand_in_root: Path) -> None:
    """Permuting the images permutes the values (or leaves the value of a set alone)."""
    metric, truth = build(spec), pictures()
    guess, order = noisy(truth, 0.1), torch.randperm(len(truth), generator=torch.Generator().manual_seed(2))
    values = metric(guess, truth, reference(truth, stand_in_root))
    permuted = metric(guess[order], truth[order], reference(truth, stand_in_root))
    torch.testing.assert_close(permuted, values if metric.of_set else values[order], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", WITHOUT_FILE + WITH_FILE)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: 2 * x - 1, r"pixels in \[-.*; metrics take \[0, 1\]"),
        (lambda x: 255 * x, "undo the normalisation"),
        (lambda x: torch.full_like(x, torch.nan), "NaN or infinite pixels in 24 of 24"),
        (lambda x: x[:-1], "must have one N×C×H×W shape"),
        (lambda x: (255 * x).to(torch.uint8), "divide 8-bit pixels by 255"),
    ],
    ids=["signed", "8-bit range", "nan", "fewer", "uint8"],
)
def test_wrong_pictures_are_refused(spec: str, spoil, message: str, stand_in_root: Path) -> None:  # type: ignore[no-untyped-def]
    metric, truth = build(spec), pictures()
    with pytest.raises(ValueError, match=message):
        metric(spoil(truth), truth, reference(truth, stand_in_root))
    if spoil(truth).shape == truth.shape:
        with pytest.raises(ValueError, match="truth "):
            metric(truth, spoil(truth), reference(truth, stand_in_root))


def test_empty_sets_are_refused() -> None:
    empty = torch.zeros(0, 1, 8, 8)
    with pytest.raises(ValueError, match="nothing to measure"):
        build("mse")(empty, empty, Reference(empty))


def test_rounding_past_the_range_is_forgiven() -> None:
    truth = pictures()
    build("ssim")(truth * 0 + 1 + 5e-5, truth, reference(truth))


@pytest.mark.parametrize("spec", ["mse", "cosine", "leak"])
def test_points_have_no_range(spec: str) -> None:
    """The gaussians set: N×D×1×1, any value."""
    truth = 3 * torch.randn(30, 10, 1, 1, generator=torch.Generator().manual_seed(0))
    assert build(spec)(truth + 0.1, truth, reference(truth)).isfinite().all()
    with pytest.raises(ValueError, match="pixels in"):
        build("psnr")(truth, truth, reference(truth))


@pytest.mark.parametrize("spec", [*WITH_FILE, "fid:inception", "identity"])
def test_a_missing_file_is_named_with_a_remedy_and_never_replaced(spec: str, tmp_path: Path) -> None:
    metric, truth = build(spec), pictures(4, 3, 64)
    assert "LEAKSCOPE_DATA" in str(metric.unavailable(None))
    reason = metric.unavailable(tmp_path)
    assert reason is not None
    assert str(tmp_path) in reason
    assert "\n" not in reason
    for root in (None, tmp_path):
        with pytest.raises(UsageError, match=r"--data-root"):
            metric(truth, truth, reference(truth, root))


def test_the_network_is_part_of_the_name() -> None:
    names = {METRICS.build(spec).name for spec in ("psim:random-conv", "psim", "fid", "fid:alexnet", "fid:pixels")}
    assert names == {"psim[random-conv]", "psim[alexnet]", "fid[inception]", "fid[alexnet]", "fid[pixels]"}
    for spec in ("psim:pixels", "fid:resnet"):
        with pytest.raises(UsageError, match=r"choose from: .*alexnet"):
            METRICS.build(spec)
