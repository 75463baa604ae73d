from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity
from torch import Tensor

from leakscope.core.metric import Reference
from leakscope.metrics import structural
from leakscope.metrics.structural import StructuralSimilarity


def ssim(guess: Tensor, truth: Tensor) -> Tensor:
    return StructuralSimilarity()(guess, truth, Reference(truth))


def pair(n: int, channels: int, height: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    truth = torch.rand(n, channels, height, width, generator=rng)
    truth[:, :, : height // 2] **= 4  # dark and flat above, bright and busy below
    return (truth + 0.2 * torch.randn(truth.shape, generator=rng)).clamp(0, 1), truth


@pytest.mark.parametrize("shape", [(1, 11, 11), (1, 28, 28), (3, 32, 32), (3, 17, 40), (1, 64, 12)])
def test_equals_scikit_image(shape: tuple[int, int, int]) -> None:
    guess, truth = pair(6, *shape)
    expected = [
        structural_similarity(
            a,
            b,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for a, b in zip(guess.double().numpy(), truth.double().numpy(), strict=True)
    ]
    np.testing.assert_allclose(ssim(guess, truth).numpy(), expected, atol=1e-6)


def by_hand(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], window: int) -> float:
    """The definition, position by position, for one channel."""
    offsets = np.arange(window) - window // 2
    weights = np.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * 1.5**2))
    weights /= weights.sum()
    scores = []
    for top in range(a.shape[0] - window + 1):
        for left in range(a.shape[1] - window + 1):
            p, q = (image[top : top + window, left : left + window] for image in (a, b))
            mp, mq = (weights * p).sum(), (weights * q).sum()
            vp, vq = (weights * (p - mp) ** 2).sum(), (weights * (q - mq) ** 2).sum()
            c = (weights * (p - mp) * (q - mq)).sum()
            scores.append((2 * mp * mq + 1e-4) * (2 * c + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return float(np.mean(scores))


@pytest.mark.parametrize(("side", "window"), [((10, 20), 9), ((8, 8), 7), ((4, 9), 3), ((2, 2), 1), ((13, 12), 11)])
def test_small_pictures_get_the_largest_odd_window_that_fits(side: tuple[int, int], window: int) -> None:
    guess, truth = pair(3, 1, *side)
    expected = [by_hand(guess[i, 0].double().numpy(), truth[i, 0].double().numpy(), window) for i in range(3)]
    np.testing.assert_allclose(ssim(guess, truth).numpy(), expected, atol=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 999), side=st.integers(1, 30))
def test_symmetric_bounded_and_one_for_the_truth(seed: int, side: int) -> None:
    guess, truth = pair(4, 1, side, side, seed)
    values = ssim(guess, truth)
    torch.testing.assert_close(values, ssim(truth, guess))
    assert values.abs().max() <= 1 + 1e-6
    torch.testing.assert_close(ssim(truth, truth), torch.ones(4))


def test_the_sign_is_kept() -> None:
    _, truth = pair(4, 1, 28, 28)
    assert (ssim(1 - truth, truth) < 0).all()


def test_parts_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    guess, truth = pair(7, 3, 16, 16)
    whole = ssim(guess, truth)
    monkeypatch.setattr(structural, "PIXELS_AT_ONCE", 2 * 3 * 16 * 16)
    torch.testing.assert_close(ssim(guess, truth), whole)


def test_five_hundred_digits_take_a_fifth_of_a_second() -> None:
    guess, truth = pair(500, 1, 28, 28)
    taken = []
    for _ in range(4):
        start = time.perf_counter()
        ssim(guess, truth)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.2, taken
