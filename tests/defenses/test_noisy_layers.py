"""Gaussian noise in the dense layers after training: moments in closed form, where it is, and what an attacker gets."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import nn

from leakscope.attacks._release import PublicReleases
from leakscope.core import seeds
from leakscope.core.defense import Defense, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.threat import ThreatModel, grant
from leakscope.defenses._noisy import NoisyLinear
from leakscope.defenses.gaussian import Gaussian
from leakscope.experiments.training import Training, train
from leakscope.testing import DefenseContract
from leakscope.testing.synthetic import CPU, image_set

SIGMA = 0.5
DEFENSE = Gaussian(SIGMA, in_training=False, layers="dense")


def _layer(gain: float) -> nn.Linear:
    layer = nn.Linear(16, 16)
    with torch.no_grad():
        layer.weight.copy_(gain * torch.eye(16))
        layer.bias.zero_()
    return layer


def _chain() -> SplitModel:
    """Rows ↦ 2·rows ↦ 3·(2·rows), cut there; then the scores."""
    with seeds.ambient(0, "chain"):
        model = nn.Sequential(_layer(2), _layer(3), nn.Flatten(), nn.Linear(256, 3))
    return SplitModel(model, "1", defense=DEFENSE).eval()


class TestGaussianInDenseLayers(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return DEFENSE

    def built(self, defense: Defense) -> SplitModel:
        split = defense.rebuild(_chain(), self.batch().images)
        split.defense = defense
        return split


def test_every_dense_layer_adds_noise_of_its_own() -> None:
    """After gains 2 and 3: mean 6x, variance 3²σ² + σ²."""
    x = image_set(200, "noise").images
    clean = _chain()
    noisy = DEFENSE.rebuild(clean, x[:2])
    assert isinstance(noisy.model.get_submodule("0"), NoisyLinear)
    assert not isinstance(noisy.model.get_submodule("3"), NoisyLinear)  # the scores
    error = noisy.encode(x) - 6 * x
    n = error.numel()
    variance = 10 * SIGMA**2
    assert error.mean().abs() < 4 * sqrt(variance / n)
    assert error.var().item() == pytest.approx(variance, rel=4 * sqrt(2 / n))
    torch.testing.assert_close(clean.encode(x), 6 * x)  # the network it was made from is left alone
    assert torch.equal(DEFENSE.release(error, seeds.generator(0)), error)


def test_noise_is_fresh_repeatable_and_off_in_training() -> None:
    x = image_set(8, "noise").images
    first, twin = (DEFENSE.rebuild(_chain(), x[:2]) for _ in range(2))
    ambient = torch.random.get_rng_state()
    once, again = (first.encode(x) for _ in range(2))
    assert not torch.allclose(once, again, atol=0.1)
    assert all(torch.equal(a, twin.encode(x)) for a in (once, again))
    assert torch.equal(ambient, torch.random.get_rng_state())
    torch.testing.assert_close(first.train().encode(x), 6 * x)


def test_it_is_injected_after_training_which_it_does_not_change() -> None:
    data = image_set(32, "private")
    states = []
    for defense in (build_defense("none"), DEFENSE):
        split = _chain()
        split.defense = defense
        split = defense.rebuild(split, data.images[:2])
        split, _, _ = train(split, data, Training(epochs=2, batch=8), seed=0, device=CPU)
        states.append(split.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_an_attacker_learns_from_fresh_draws() -> None:
    public = image_set(24, "public")
    split = DEFENSE.rebuild(_chain(), public.images[:2])
    view = grant(split, ThreatModel(), public, seeds.generator(0, "oracle"), classes=3, device=CPU)
    releases = PublicReleases(view, seeds.generator(0, "releases"))
    assert releases.random
    index = torch.arange(24)
    first, second = releases.draw(index).clone(), releases.draw(index)
    assert (first - second).var().item() == pytest.approx(2 * 10 * SIGMA**2, rel=0.1)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="after training"):
        build_defense("gaussian:sigma=0.5,layers=dense")
    with pytest.raises(UsageError, match="layers"):
        build_defense("gaussian:sigma=0.5,layers=all")
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 14 * 14, 3))
    with pytest.raises(UsageError, match="needs a linear layer"):
        DEFENSE.rebuild(SplitModel(model, "0"), torch.zeros(2, 1, 16, 16))
