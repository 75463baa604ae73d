"""The bound on the error of any attack, against encoders whose best attack is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.metrics.entropy import (
    ROUNDING,
    ErrorBound,
    error_bound,
    error_bounds,
    information_bound,
    picture_variances,
)


class LinearGaussian:
    """x = L n ∈ R^d, z̃ = A x + σ n′: the posterior is Gaussian, and its covariance P is known."""

    def __init__(self, d: int, features: int, sigma: float, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.sigma = sigma
        self.mix = 0.3 * torch.randn(d, d, generator=self.rng, dtype=torch.float64) / d**0.5
        self.mix += 0.05 * torch.eye(d, dtype=torch.float64)
        self.encoder = torch.randn(features, d, generator=self.rng, dtype=torch.float64)
        prior = self.mix @ self.mix.T
        signal = self.encoder @ prior @ self.encoder.T / sigma**2
        gain = prior @ self.encoder.T @ torch.linalg.inv(signal + torch.eye(features, dtype=torch.float64)) / sigma**2
        self.variances = torch.linalg.eigvalsh(prior)
        self.mmse = float((prior - gain @ self.encoder @ prior).trace() / d)
        self.nats = 0.5 * float(torch.logdet(signal + torch.eye(features, dtype=torch.float64)))

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, len(self.mix), generator=self.rng, dtype=torch.float64) @ self.mix.T
        return x, x @ self.encoder.T


DIMENSIONS = dict(  # noqa: C408 (keywords of @given)
    d=st.integers(1, 12), features=st.integers(1, 12), log_sigma=st.floats(-1.5, 0.5), seed=st.integers(0, 9999)
)


@settings(max_examples=60, deadline=None)
@given(**DIMENSIONS)
def test_no_more_than_the_least_error_with_exact_information(
    d: int, features: int, log_sigma: float, seed: int
) -> None:
    world = LinearGaussian(d, features, 10**log_sigma, seed)
    entropy, rate = error_bounds(world.variances, world.nats)
    assert 0 < entropy <= rate * (1 + 1e-9)
    assert rate <= world.mmse * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(**DIMENSIONS)
def test_no_more_than_the_least_error_when_estimated(d: int, features: int, log_sigma: float, seed: int) -> None:
    """Everything from samples, as an audit has it; the caution in the estimates keeps the bound below the truth."""
    world = LinearGaussian(d, features, 10**log_sigma, seed)
    (x, z), (y, w), groups = world.draw(1000), world.draw(1000), torch.zeros(1000, dtype=torch.int64)
    nats = information_bound(z, groups, w, groups, world.sigma)
    assert nats >= world.nats * (1 - 1e-3)
    bound = error_bound(picture_variances(torch.cat((x, y))), nats)
    assert bound.entropy <= bound.rate <= world.mmse + ROUNDING
    assert bound.rate <= bound.blind


@pytest.mark.parametrize(("d", "features", "sigma", "share"), [(3, 12, 0.05, 0.6), (8, 8, 0.6, 0.4), (12, 4, 1.0, 0.5)])
def test_it_is_not_vacuous(d: int, features: int, sigma: float, share: float) -> None:
    """The estimated bound is a good part of the least error that is possible."""
    for seed in range(3):
        world = LinearGaussian(d, features, sigma, seed)
        (x, z), (_, w), groups = world.draw(2000), world.draw(2000), torch.zeros(2000, dtype=torch.int64)
        bound = error_bound(picture_variances(x), information_bound(z, groups, w, groups, sigma))
        assert bound.rate > share * world.mmse, f"{bound.rate:.4g} against {world.mmse:.4g}"


def test_isotropic_pictures_behind_isotropic_noise_are_bounded_exactly() -> None:
    """x ~ N(0, s²I), z̃ = x + σn: error s²σ²/(s² + σ²) in every direction, where both bounds are attained."""
    s, sigma, d = 0.3, 0.2, 7
    nats = d * 0.5 * math.log(1 + s**2 / sigma**2)
    for value in error_bounds(torch.full((d,), s**2, dtype=torch.float64), nats):
        assert value == pytest.approx(s**2 * sigma**2 / (s**2 + sigma**2), rel=1e-9)


def test_no_information_leaves_the_variance() -> None:
    variances = torch.tensor([4.0, 1.0, 0.25])
    entropy, rate = error_bounds(variances, 0.0)
    assert rate == pytest.approx(1.75)
    assert entropy == pytest.approx(1.0)
    assert error_bound(variances, 0.0) == ErrorBound(entropy, rate, 1.75, 0.0, 3)


def test_water_filling_by_bisection() -> None:
    variances, nats = torch.tensor([5.0, 2.0, 0.1, 0.01]), 1.7
    low, high = 1e-9, 5.0
    for _ in range(200):
        water = (low + high) / 2
        told = 0.5 * (variances.double() / water).log().clamp_min(0).sum()
        low, high = (water, high) if told > nats else (low, water)
    assert error_bounds(variances, nats)[1] == pytest.approx(float(variances.clamp_max(low).mean()), rel=1e-6)


def test_groups_far_apart_cost_their_choice_only() -> None:
    """Two tight clusters: one Gaussian over both is loose, a mixture tells log 2 nats and little more."""
    rng = torch.Generator().manual_seed(0)
    groups = torch.arange(2000) % 2
    z = 100.0 * groups[:, None] + 0.01 * torch.randn(2000, 3, generator=rng)
    mixed = information_bound(z[:1000], groups[:1000], z[1000:], groups[1000:], 1.0)
    alone = information_bound(z[:1000], 0 * groups[:1000], z[1000:], 0 * groups[1000:], 1.0)
    assert mixed == pytest.approx(math.log(2), abs=0.01)
    assert alone > 3


def test_classes_with_few_pictures_are_not_trusted() -> None:
    """Two pictures of each class vary little by chance; that must not pass for privacy."""
    z = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    rare = torch.arange(40) // 2
    assert information_bound(z, rare, z, rare, 0.1) == information_bound(z, 0 * rare, z, 0 * rare, 0.1)


def test_constant_features_tell_nothing_and_wide_ones_are_not_rotated() -> None:
    groups = torch.zeros(20, dtype=torch.int64)
    assert information_bound(torch.ones(20, 4), groups, torch.ones(20, 4), groups, 0.1) == pytest.approx(0, abs=1e-9)
    wide = torch.randn(20, 1100, generator=torch.Generator().manual_seed(0))
    assert information_bound(wide, groups, wide, groups, 1.0) > 1100 * 0.5 * math.log(1.5)
    wider = torch.randn(20, 50_000, generator=torch.Generator().manual_seed(0))  # whose rotation would take 20 GB
    assert information_bound(wider, groups, wider, groups, 1.0) > 50_000 * 0.5 * math.log(1.5)


def test_fewer_pictures_than_pixels_give_finite_bounds() -> None:
    images = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images[:, :, 0] = 0  # a border that never changes
    variances = picture_variances(images)
    assert len(variances) == 64
    assert float(variances.min()) == pytest.approx(ROUNDING)
    bound = error_bound(variances, 30.0)
    assert 0 < bound.entropy < bound.rate < bound.blind


def test_wrong_arguments_are_refused() -> None:
    z, groups = torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(ValueError, match="sigma must be positive"):
        information_bound(z, groups, z, groups, 0.0)
    with pytest.raises(ValueError, match="same features"):
        information_bound(torch.zeros(5, 3), groups, z, groups, 1.0)
    with pytest.raises(ValueError, match="two of them"):
        picture_variances(torch.zeros(1, 1, 2, 2))
