from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

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


def test_as_dict_is_json() -> None:
    found = separability(torch.tensor([[0.0], [1.0], [3.0]]))
    assert json.loads(json.dumps(found.as_dict())) == {"min": 1.0, "mean": 2.0, "max": 3.0, "n": 3}


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="two pictures or more"):
        separability(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="at_most"):
        separability(torch.zeros(4, 4), at_most=1)
    with pytest.raises(ValueError, match="did not train"):
        separability(torch.full((3, 4), torch.inf))
