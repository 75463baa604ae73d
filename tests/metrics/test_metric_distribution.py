from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from torch import Tensor

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.metric import Reference
from leakscope.metrics import distribution
from leakscope.metrics.distribution import FrechetDistance, frechet_distance
from leakscope.metrics.networks import INCEPTION_FILE, load_inception


def rows(n: int, d: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=rng, dtype=torch.float64) @ torch.randn(d, d, generator=rng, dtype=torch.float64)


def with_moments(n: int, mean: Tensor, root: Tensor, seed: int) -> Tensor:
    """Rows whose sample mean and covariance are exactly `mean` and rootᵀ·root."""
    white = rows(n, len(mean), seed)
    white = white - white.mean(0)
    orthonormal: Tensor = torch.linalg.qr(white).Q
    return mean + math.sqrt(n - 1) * orthonormal @ root


def via_sqrtm(a: Tensor, b: Tensor) -> float:
    x, y = a.double().numpy(), b.double().numpy()
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    shift = ((x.mean(0) - y.mean(0)) ** 2).sum()
    return float(shift + np.trace(s) + np.trace(t) - 2 * np.trace(sqrtm(s @ t)).real)


@settings(max_examples=40)
@given(d=st.integers(2, 12), extra=st.integers(2, 40), seed=st.integers(0, 999))
def test_equals_scipy_when_covariances_are_regular(d: int, extra: int, seed: int) -> None:
    a, b = rows(d + extra, d, seed), 0.5 + rows(d + 2 * extra, d, seed + 1000)
    assert frechet_distance(a, b).item() == pytest.approx(via_sqrtm(a, b), rel=1e-4)


def test_closed_form_of_two_gaussians_with_diagonal_covariances() -> None:
    """d² = ‖μ − ν‖² + Σ (s_i − t_i)² for standard deviations s and t."""
    rng = torch.Generator().manual_seed(0)
    mean_a, mean_b, s, t = (torch.rand(6, generator=rng, dtype=torch.float64) for _ in range(4))
    t[0] = 0  # singular on one side
    a, b = with_moments(30, mean_a, s.diag(), 1), with_moments(50, mean_b, t.diag(), 2)
    expected = (mean_a - mean_b).square().sum() + (s - t).square().sum()
    assert frechet_distance(a, b).item() == pytest.approx(expected.item(), rel=1e-6)


def test_closed_form_of_a_rotated_and_scaled_gaussian() -> None:
    """With S_b = c²·S_a, commuting, d² = (1 − c)²·Tr S_a, here with correlated features."""
    root = rows(8, 8, 3)
    zero = torch.zeros(8, dtype=torch.float64)
    a, b = with_moments(40, zero, root, 4), with_moments(40, zero, 3 * root, 5)
    assert frechet_distance(a, b).item() == pytest.approx(4 * root.square().sum().item(), rel=1e-6)


@settings(max_examples=40)
@given(n=st.integers(2, 12), m=st.integers(2, 12), seed=st.integers(0, 999))
def test_fewer_rows_than_features(n: int, m: int, seed: int) -> None:
    """Against the eigenvalues of S_a^½ S_b S_a^½ with the rounding noise cut off by hand."""
    a, b = rows(n, 30, seed), rows(m, 30, seed + 1000)
    s, t = torch.cov(a.T), torch.cov(b.T)
    values, vectors = torch.linalg.eigh(s)
    root = vectors @ values.clamp_min(0).sqrt().diag() @ vectors.T
    inner = torch.linalg.eigvalsh(root @ t @ root)
    inner = inner[inner > 1e-10 * inner.max()]
    expected = (a.mean(0) - b.mean(0)).square().sum() + s.trace() + t.trace() - 2 * inner.sqrt().sum()
    assert frechet_distance(a, b).item() == pytest.approx(expected.item(), rel=1e-5)


@settings(max_examples=40)
@given(n=st.integers(2, 20), d=st.integers(1, 20), seed=st.integers(0, 999))
def test_zero_for_equal_sets_symmetric_and_the_shift_of_a_shifted_set(n: int, d: int, seed: int) -> None:
    a, b = rows(n, d, seed), rows(n + 3, d, seed + 1000)
    scale = a.square().sum().item()
    assert frechet_distance(a, a.flip(0)).item() <= 1e-10 * scale
    assert frechet_distance(a, a + 2).item() == pytest.approx(4 * d, rel=1e-5)
    assert frechet_distance(a, b).item() == pytest.approx(frechet_distance(b, a).item(), rel=1e-5)


def test_what_has_no_distance_raises_and_never_scores_zero() -> None:
    a = rows(5, 3, 0)
    with pytest.raises(ValueError, match="two rows or more"):
        frechet_distance(a[:1], a)
    with pytest.raises(ValueError, match="second set has NaN"):
        frechet_distance(a, a.clone().index_fill(0, torch.tensor([2]), torch.nan))
    with pytest.raises(ValueError, match="of 3 and of 2 numbers"):
        frechet_distance(a, a[:, :2])
    one = torch.rand(1, 1, 8, 8)
    with pytest.raises(ValueError, match="two pictures or more"):
        FrechetDistance("pixels")(one, one, Reference(one))


def test_overflow_raises() -> None:
    with pytest.raises(ArithmeticError, match="came out as"):
        frechet_distance(1e200 * rows(5, 3, 0), rows(5, 3, 1))


def test_pixel_features_of_small_pictures_are_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    guess, truth = torch.rand(300, 1, 5, 4, generator=rng), torch.rand(300, 1, 5, 4, generator=rng).square()
    metric = FrechetDistance("pixels")
    value = metric(guess, truth, Reference(truth))
    assert value.item() == pytest.approx(via_sqrtm(guess.flatten(1), truth.flatten(1)), rel=1e-4)
    monkeypatch.setattr(distribution, "AT_ONCE", 7)
    torch.testing.assert_close(metric(guess, truth, Reference(truth)), value)


def test_inception_with_weights_of_the_right_shapes(tmp_path: Path) -> None:
    """No trained weights are at hand: random ones show that the file is read and 2,048 averages are compared."""
    ensure_torchvision()
    from torchvision.models import inception_v3

    network = inception_v3(weights=None, init_weights=False).eval()
    (tmp_path / "weights").mkdir()
    torch.save(network.state_dict(), tmp_path / "weights" / INCEPTION_FILE)
    rng = torch.Generator().manual_seed(0)
    guess, truth = torch.rand(2, 1, 299, 299, generator=rng), torch.rand(2, 1, 299, 299, generator=rng)
    kept: list[Tensor] = []
    network.avgpool.register_forward_hook(lambda module, args, output: kept.append(output.flatten(1)))
    with torch.no_grad():
        network(2 * torch.cat((guess, truth)).repeat(1, 3, 1, 1) - 1)
    features = kept[0]
    assert features.shape == (4, 2048)
    metric = FrechetDistance()
    assert metric.unavailable(tmp_path) is None
    value = metric(guess, truth, Reference(truth, tmp_path))
    torch.testing.assert_close(value, frechet_distance(features[:2], features[2:]), rtol=1e-4, atol=0)
    load_inception.cache_clear()
    (tmp_path / "weights" / INCEPTION_FILE).unlink()  # pytest keeps folders, and this file is 100 MB


class RunsCode:
    """A pickle of this would make a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("content", ["code", "other tensors", "noise"])
def test_a_wrong_inception_file_is_refused_without_running_it(content: str, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    file, trap = tmp_path / "weights" / INCEPTION_FILE, tmp_path / "trap"
    if content == "noise":
        file.write_bytes(b"\x00\x01" * 500)
    else:
        torch.save({"fc": RunsCode(trap) if content == "code" else torch.zeros(2)}, file)
    truth = torch.rand(2, 3, 8, 8)
    with pytest.raises(UsageError, match=r"does not hold torchvision's Inception v3.*copy the file again") as refused:
        FrechetDistance()(truth, truth, Reference(truth, tmp_path))
    assert not trap.exists()
    assert "\n" not in str(refused.value)
