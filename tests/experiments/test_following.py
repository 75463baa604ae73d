"""Small changes are read where they are, through every code and no further than noise lets them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.experiments.following import HIDDEN, SMALL, followed

PICTURES = torch.rand(16, 1, 8, 8, generator=seeds.generator(0, "following"))
WEIGHTS = torch.randn(64, 256, generator=seeds.generator(1, "following")) / 8


def waves(x: Tensor) -> Tensor:
    return (11 * (x.flatten(1) @ WEIGHTS)).sin().double()


def label(x: Tensor) -> Tensor:
    return (x.flatten(1).mean(1, keepdim=True) > 0.5).double().expand(-1, 20)


def two_numbers(x: Tensor) -> Tensor:
    return (x.flatten(1) @ WEIGHTS[:, :2]).double()


def noisy(x: Tensor, sigma: float) -> Tensor:
    z = waves(x)
    return z + sigma * torch.randn(z.shape, generator=seeds.generator(len(x), "noise"), dtype=z.dtype)


def share(release: object, size: float = SMALL) -> float:
    assert callable(release)
    return followed(release, PICTURES, release(PICTURES).std(0), size)


def test_every_change_is_in_waves_and_none_in_a_label() -> None:
    assert share(waves) > 0.95
    assert share(label) < 0.1
    assert share(two_numbers) < 2 / 32 + 0.1  # two of 32 directions, at most


@pytest.mark.parametrize(("sigma", "hidden"), [(0.05, False), (0.2, False), (5.0, True)])
def test_noise_hides_what_is_smaller_than_itself(sigma: float, hidden: bool) -> None:
    """Waves of σ 0.2 hide a change of 0.01, and none as large as those by which pictures differ."""
    most = max(share(lambda x: noisy(x, sigma), size) for size in HIDDEN)
    assert (most < 0.3) if hidden else (most > 0.5)
