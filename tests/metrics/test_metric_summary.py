from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from leakscope.metrics import summary
from leakscope.metrics.summary import Interval, Summary, paired_difference, summarize


def values(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)).square()


@settings(max_examples=25)
@given(n=st.integers(2, 200), seed=st.integers(0, 999))
def test_moments_against_numpy(n: int, seed: int) -> None:
    numbers = values(n, seed)
    found = summarize(numbers, "high", seed)
    array = numbers.double().numpy()
    assert found.mean == pytest.approx(array.mean(), rel=1e-12)
    assert found.std == pytest.approx(array.std(ddof=1), rel=1e-12)
    assert found.n == n
    assert found.worst == array.max()
    assert summarize(numbers, "low", seed).worst == array.min()
    assert array.min() <= found.low <= found.mean <= found.high <= array.max()


def test_interval_against_scipy() -> None:
    numbers = values(120)
    found = summarize(numbers, "high", 0)
    theirs = stats.bootstrap(
        (numbers.double().numpy(),), np.mean, n_resamples=20_000, method="percentile", rng=0
    ).confidence_interval
    # Two thousand resamples leave an end point uncertain by about a twentieth of the width.
    width = theirs.high - theirs.low
    assert abs(found.low - theirs.low) < 0.06 * width
    assert abs(found.high - theirs.high) < 0.06 * width


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    """200 samples of 60 from a skewed law of mean 1/3: 95 % ± three standard errors of 1.5 %."""
    covered = [
        found.low <= 1 / 3 <= found.high for found in (summarize(values(60, seed), "high", seed) for seed in range(200))
    ]
    assert 0.90 <= np.mean(covered) <= 0.995


def test_same_seed_same_interval_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = values(50)
    first = summarize(numbers, "high", 7)
    assert first == summarize(numbers, "high", 7)
    assert first != summarize(numbers, "high", 8)
    monkeypatch.setattr(summary, "DRAWN_AT_ONCE", 50 * 300)
    chunked = summarize(numbers, "high", 7)
    assert chunked.low == pytest.approx(first.low, rel=1e-12)
    assert chunked.high == pytest.approx(first.high, rel=1e-12)


def test_one_value_and_equal_values_have_no_spread() -> None:
    assert summarize(torch.tensor(3.5), "low", 0) == Summary(3.5, 0.0, 3.5, 3.5, 3.5, 1)
    equal = summarize(torch.full((30,), 0.1), "low", 0)
    assert equal.low == equal.high == equal.mean
    assert equal.std == 0


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 3 values are NaN"):
        summarize(torch.tensor([1.0, torch.nan, 2.0]), "high", 0)
    with pytest.raises(ValueError, match="no values"):
        summarize(torch.zeros(0), "high", 0)
    with pytest.raises(ValueError, match="equally many"):
        paired_difference(torch.zeros(3), torch.zeros(4))


def test_pairs_cancel_what_they_share() -> None:
    """A difference of 0.02 ± 0.01 on images that differ by 0.3 is found, and only by pairing."""
    rng = torch.Generator().manual_seed(0)
    shared = torch.rand(100, generator=rng)
    a = shared + 0.02 + 0.01 * torch.randn(100, generator=rng)
    found = paired_difference(a, shared)
    assert found.excludes_zero
    assert found.mean == pytest.approx((a - shared).double().mean().item(), abs=1e-7)
    assert found.low < 0.02 < found.high
    alone, other = summarize(a, "high", 0), summarize(shared, "high", 0)
    assert alone.low < other.high
    mirrored = paired_difference(shared, a)
    assert mirrored.mean == -found.mean
    assert mirrored.excludes_zero
    assert not paired_difference(shared, shared).excludes_zero


def test_as_dict_is_json() -> None:
    assert json.loads(json.dumps(summarize(values(9), "high", 0).as_dict())).keys() == {
        "mean",
        "std",
        "low",
        "high",
        "worst",
        "n",
    }
    assert Interval(1.0, 0.5, 1.5, 4).as_dict() == {"mean": 1.0, "low": 0.5, "high": 1.5, "n": 4}


def test_five_hundred_images_are_summarised_in_a_tenth_of_a_second() -> None:
    numbers, taken = values(500), []
    for _ in range(4):
        start = time.perf_counter()
        summarize(numbers, "high", 0)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.1, taken
