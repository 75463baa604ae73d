"""Whether what was observed of victims is what their pictures release otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from leakscope.experiments.probes import strays

FEATURES = torch.rand(8, 1500, generator=torch.Generator().manual_seed(0))


def dropout(share: float) -> Callable[[torch.Generator], Tensor]:
    return lambda rng: FEATURES * (torch.rand(FEATURES.shape, generator=rng) > share)


def noise(rng: torch.Generator) -> Tensor:
    return FEATURES + torch.randn(FEATURES.shape, generator=rng)


def label(rng: torch.Generator) -> Tensor:
    return FEATURES * (torch.arange(1500) < 10) + 0.01 * torch.randn(FEATURES.shape, generator=rng)


@pytest.mark.parametrize("release", [dropout(0.3), dropout(0.01), dropout(0.9), noise, label, lambda rng: FEATURES])
def test_a_release_like_any_other_does_not_stray(release: Callable[[torch.Generator], Tensor]) -> None:
    found = [strays(release(torch.Generator().manual_seed(seed)), release) for seed in range(100, 140)]
    assert not any(found)


@pytest.mark.parametrize("release", [dropout(0.3), noise, label])
def test_a_release_made_for_the_victims_does(release: Callable[[torch.Generator], Tensor]) -> None:
    gift = release(torch.Generator().manual_seed(0))
    gift[:, 100:200] = 3 * FEATURES[:, :100] + 8  # something else, in a fifteenth of the features
    assert strays(gift, release)
    assert strays(FEATURES, label)
