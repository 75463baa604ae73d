from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio
from sklearn.metrics import mean_squared_error
from sklearn.metrics.pairwise import paired_cosine_distances
from torch import Tensor

from leakscope.core.metric import Reference
from leakscope.metrics.pixel import PSNR_CAP, CosineSimilarity, Leak, MeanSquaredError, PeakSignalToNoise


def pair(seed: int = 0, n: int = 12, shape: tuple[int, ...] = (3, 9, 7)) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(n, *shape, generator=rng), torch.rand(n, *shape, generator=rng)


def class_means(truth: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([truth[labels == label].mean(0) for label in labels])


def test_mse_and_psnr_against_scikit() -> None:
    guess, truth = pair()
    nothing = Reference(truth)
    mse = MeanSquaredError()(guess, truth, nothing)
    psnr = PeakSignalToNoise()(guess, truth, nothing)
    for i, (a, b) in enumerate(zip(guess.numpy(), truth.numpy(), strict=True)):
        assert float(mse[i]) == pytest.approx(mean_squared_error(b.ravel(), a.ravel()), rel=1e-5)
        assert float(psnr[i]) == pytest.approx(peak_signal_noise_ratio(b, a, data_range=1), rel=1e-5)


def test_an_exact_image_has_a_finite_psnr() -> None:
    _, truth = pair()
    guess = truth.clone()
    guess[0] = 1 - truth[0]
    values = PeakSignalToNoise()(guess, truth, Reference(truth))
    assert values[1:].eq(PSNR_CAP).all()
    assert values[0] < 20
    # One 8-bit step everywhere, 48.13 dB, is far below the cap.
    step = PeakSignalToNoise()(torch.full((1, 1, 4, 4), 1 / 255), torch.zeros(1, 1, 4, 4), Reference(truth))
    assert float(step) == pytest.approx(20 * np.log10(255), rel=1e-6)


def test_cosine_against_scikit() -> None:
    guess, truth = pair()
    expected = 1 - paired_cosine_distances(guess.flatten(1).double().numpy(), truth.flatten(1).double().numpy())
    np.testing.assert_allclose(CosineSimilarity()(guess, truth, Reference(truth)).numpy(), expected, rtol=1e-6)


def test_cosine_of_black_pictures() -> None:
    black, white = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    cosine = CosineSimilarity()
    assert cosine(black, black, Reference(black)).item() == 1
    assert cosine(black, white, Reference(black)).item() == 0
    assert cosine(white, black, Reference(black)).item() == 0


@settings(max_examples=40)
@given(scale=st.floats(1e-30, 1), seed=st.integers(0, 99))
def test_cosine_ignores_brightness(scale: float, seed: int) -> None:
    guess, truth = pair(seed, n=3)
    cosine, nothing = CosineSimilarity(), Reference(truth)
    torch.testing.assert_close(cosine(scale * guess, truth, nothing), cosine(guess, truth, nothing))
    torch.testing.assert_close(cosine(scale * truth, truth, nothing), torch.ones(3))


@settings(max_examples=40)
@given(n=st.integers(2, 40), classes=st.integers(1, 5), seed=st.integers(0, 999))
def test_mean_leak_is_the_headline(n: int, classes: int, seed: int) -> None:
    guess, truth = pair(seed, n, (1, 4, 4))
    labels = torch.arange(n) % classes
    public_mean = class_means(pair(seed + 1000, n, (1, 4, 4))[0], labels)
    values = Leak()(guess, truth, Reference(public_mean))
    x, y, m = (t.double().numpy() for t in (truth, guess, public_mean))
    headline = 1 - ((x - y) ** 2).sum() / ((x - m) ** 2).sum()
    assert values.double().mean().item() == pytest.approx(headline, abs=1e-6)


@settings(max_examples=40)
@given(share=st.floats(0, 1), seed=st.integers(0, 99))
def test_leak_on_the_way_from_class_mean_to_truth(share: float, seed: int) -> None:
    """x̂ = x̄ + t(x − x̄) leaves the error (1−t)²‖x − x̄‖², hence leak 1 − (1−t)²."""
    _, truth = pair(seed, 20)
    mean = class_means(truth, torch.arange(20) % 4)
    values = Leak()(torch.lerp(mean, truth, share), truth, Reference(mean))
    assert values.double().mean().item() == pytest.approx(1 - (1 - share) ** 2, abs=1e-6)


def test_class_mean_scores_zero_and_truth_one() -> None:
    rng = torch.Generator().manual_seed(0)
    truth = torch.rand(500, 1, 28, 28, generator=rng)
    mean = class_means(truth, torch.arange(500) % 10)
    assert abs(Leak()(mean, truth, Reference(mean)).mean().item()) < 1e-6
    assert Leak()(truth, truth, Reference(mean)).eq(1).all()


def test_nothing_beyond_the_label_is_no_leak() -> None:
    truth = torch.full((4, 1, 5, 5), 0.25)
    for guess in (truth, 1 - truth):
        assert Leak()(guess, truth, Reference(truth)).eq(0).all()


def test_leak_needs_a_class_mean_for_each_image() -> None:
    guess, truth = pair()
    with pytest.raises(ValueError, match="N×C×H×W"):
        Leak()(guess, truth, Reference(truth[:1]))
