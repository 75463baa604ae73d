"""Bounds by Fisher information, against posteriors that are known exactly."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.metrics.fisher import bayesian_bound, unbiased_bound


def posterior_error(information: Tensor, covariance: Tensor) -> float:
    """The least mean squared error for Gaussian pictures and a linear encoder: Tr[(F + Σ⁻¹)⁻¹]/d."""
    return float(torch.linalg.inv(information + torch.linalg.inv(covariance)).trace() / len(covariance))


@settings(max_examples=40, deadline=None)
@given(d=st.integers(2, 8), features=st.integers(1, 10), sigma=st.floats(0.01, 10), seed=st.integers(0, 1000))
def test_no_attack_on_a_linear_encoder_beats_it(d: int, features: int, sigma: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=rng, dtype=torch.float64) + 0.1 * torch.eye(d)
    encoder = torch.randn(features, d, generator=rng, dtype=torch.float64)
    covariance, information = mix @ mix.T + 1e-6 * torch.eye(d), encoder.T @ encoder / sigma**2
    variances, trace = torch.linalg.eigvalsh(covariance), float(information.trace())
    found = bayesian_bound(trace, variances)
    assert found <= posterior_error(information, covariance) * (1 + 1e-9)
    assert found >= d / (trace + float(variances.reciprocal().sum())) * (1 - 1e-9)


def test_it_is_the_posterior_error_where_nothing_is_wasted() -> None:
    """Information that fills up what the prior knows least, as rain fills a valley, is spent best."""
    variances = torch.tensor([2.0, 1.0, 0.25, 0.01], dtype=torch.float64)
    for theta in (1.5, 0.5, 0.1, 0.001):
        information = (1 / theta - variances.reciprocal()).clamp_min(0)
        exact = posterior_error(torch.diag(information), torch.diag(variances))
        assert bayesian_bound(float(information.sum()), variances) == pytest.approx(exact, rel=1e-9)


def test_without_information_the_mean_picture_is_best_and_with_much_the_prior_does_not_matter() -> None:
    variances = torch.tensor([2.0, 1.0, 0.25])
    assert bayesian_bound(0.0, variances) == pytest.approx(float(variances.mean()))
    assert bayesian_bound(1e9, variances) == pytest.approx(unbiased_bound(1e9, 3), rel=1e-6)
    assert math.isinf(unbiased_bound(0.0, 3))
    with pytest.raises(ValueError, match="0 or more"):
        bayesian_bound(-1.0, variances)


def test_an_attack_without_bias_attains_one_over_dfil() -> None:
    """An orthogonal encoder c·Q: x̂ = Qᵀz̃/c has no bias, and its error is σ²/c² for every pixel."""
    rng = torch.Generator().manual_seed(0)
    d, scale, sigma = 16, 3.0, 0.7
    q = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64))[0]
    x = torch.rand(4000, d, generator=rng, dtype=torch.float64)
    z = scale * x @ q.T + sigma * torch.randn(4000, d, generator=rng, dtype=torch.float64)
    error = float((z @ q / scale - x).square().mean())
    assert error == pytest.approx(unbiased_bound(d * scale**2 / sigma**2, d), rel=0.03)
