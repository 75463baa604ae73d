from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from leakscope.core.errors import UsageError
from leakscope.defenses.mixcon import mixcon
from leakscope.metrics.separability import separability


@settings(max_examples=40)
@given(n=st.integers(2, 30), seed=st.integers(0, 999))
def test_equals_scipy(n: int, seed: int) -> None:
    features = torch.randn(n, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    found, expected = separability(features), pdist(features.flatten(1).double().numpy())
    assert found.min == pytest.approx(expected.min(), rel=1e-5)
    assert found.mean == pytest.approx(expected.mean(), rel=1e-5)
    assert found.max == pytest.approx(expected.max(), rel=1e-5)
    assert found.n == n


@settings(max_examples=20)
@given(n=st.integers(2, 20), seed=st.integers(0, 999), scale=st.floats(1e-3, 1e3))
def test_on_unit_vectors_it_is_the_angle_whatever_the_scale(n: int, seed: int, scale: float) -> None:
    """‖â − b̂‖² = 2(1 − cos): scipy's cosine distance, twice."""
    features = torch.randn(n, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    expected = np.sqrt(2 * pdist(features.flatten(1).double().numpy(), "cosine"))
    found = separability(features * scale, unit_norm=True)
    assert found.min == pytest.approx(expected.min(), rel=1e-4)
    assert found.mean == pytest.approx(expected.mean(), rel=1e-4)
    assert found.max == pytest.approx(expected.max(), rel=1e-4)
    assert found.max <= 2 + 1e-6


def test_unit_vectors_are_those_the_loss_of_mixcon_sees() -> None:
    """Two samples of two classes: the loss is d + β/d with d the square of their distance here."""
    z = torch.tensor([[3.0, 4.0], [0.0, 7.0]])
    d = separability(z, unit_norm=True).mean ** 2
    assert mixcon(z, torch.tensor([0, 1]), 0.1, 1e-6).item() == pytest.approx(d + 0.1 / d, rel=1e-5)
    assert separability(torch.zeros(2, 3), unit_norm=True).max == 0


def test_a_pair_that_is_close_and_far_from_zero_keeps_its_distance() -> None:
    """‖a‖² + ‖b‖² − 2⟨a, b⟩ would lose it in single precision."""
    features = torch.full((2, 100), 1000.0)
    features[1, 0] += 0.125
    assert separability(features).min == 0.125


def test_a_sample_is_repeatable_and_inside_the_range_of_all() -> None:
    features = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    whole, part = separability(features), separability(features, at_most=50, seed=3)
    assert part == separability(features, at_most=50, seed=3)
    assert part != separability(features, at_most=50, seed=4)
    assert part.n == 50
    assert whole.min <= part.min <= part.mean <= part.max <= whole.max
    assert part.mean == pytest.approx(whole.mean, rel=0.1)


def test_three_points_have_three_distances() -> None:
    found = separability(torch.tensor([[0.0], [1.0], [3.0]]))
    assert (found.min, found.mean, found.max, found.n) == (1.0, 2.0, 3.0, 3)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="two pictures or more"):
        separability(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="at_most"):
        separability(torch.zeros(4, 4), at_most=1)
    with pytest.raises(UsageError, match="did not train"):
        separability(torch.full((3, 4), torch.inf))
