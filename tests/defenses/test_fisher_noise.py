"""Noise set to a wanted bound, against the closed form of a linear encoder."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import Defense, Stack, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses.bottleneck import Bottleneck
from leakscope.defenses.fisher_noise import FisherNoise
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import make_plan
from leakscope.experiments.training import Training, train
from leakscope.nn.fisher import fisher_traces
from leakscope.testing import DefenseContract
from leakscope.testing.synthetic import CPU, image_set, small_split

PIXELS = 256


class TestFisherNoise(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return FisherNoise(0.01)

    @pytest.fixture
    def neutral(self) -> Defense:
        return FisherNoise(0.0)


def linear(features: int, defense: Defense) -> SplitModel:
    with seeds.ambient(0, "linear"):
        net = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, features), nn.Linear(features, 3))
    split = SplitModel(net, "1", defense=defense)
    return defense.rebuild(split.eval(), image_set(2, "example").images)


def sigma(split: SplitModel) -> float:
    return float(split.state_dict()["model.1.units.sigma"])


def trained(split: SplitModel, epochs: int) -> tuple[SplitModel, dict[str, float]]:
    network, _, notes = train(split, image_set(96, "private"), Training(epochs, batch=32), seed=0, device=CPU)
    return network, notes


@pytest.mark.parametrize("bound", [1e-4, 0.01, 1.0])
def test_on_a_linear_encoder_it_is_the_closed_form(bound: float) -> None:
    """σ² = bound · ‖A‖²_F / d: after training, for the weights that training left."""
    split, notes = trained(linear(6, FisherNoise(bound)), 2)  # six features: the trace is exact
    weights = split.state_dict()["model.1.body.weight"]
    expected = math.sqrt(bound * float(weights.square().sum()) / PIXELS)
    assert sigma(split) == pytest.approx(expected, rel=1e-4)
    assert notes["sigma"] == pytest.approx(expected, rel=1e-4)


def test_one_over_dfil_of_what_is_sent_is_the_bound() -> None:
    split, _ = trained(small_fisher(0.02), 1)
    pictures = image_set(96, "private").images
    traces = fisher_traces(split.encode, pictures, 64, seeds.generator(0, "p"))  # noise at release is one
    assert PIXELS / float(traces.mean()) == pytest.approx(0.02, rel=0.05)  # both are estimates


def small_fisher(bound: float) -> SplitModel:
    defense, split = FisherNoise(bound), small_split()
    split.defense = defense
    rebuilt = defense.rebuild(split, image_set(2, "example").images)
    rebuilt.defense = defense
    return rebuilt


def test_the_server_gets_features_back_in_their_own_units() -> None:
    images = image_set(8, "x").images
    plain, noisy = small_split(), small_fisher(1e-12)
    with torch.no_grad():
        torch.testing.assert_close(noisy(images, seeds.generator(0)), plain(images), atol=1e-3, rtol=1e-3)
        released = small_fisher(0.02).release(images, seeds.generator(0)) - small_fisher(0.02).encode(images)
    assert float(released.std()) == pytest.approx(1, rel=0.05)


def test_it_is_the_same_twice() -> None:
    first, second = (trained(small_fisher(0.02), 1)[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (4 * x).round() + 0 * x


def test_features_that_jump_are_refused() -> None:
    split = SplitModel(nn.Sequential(Rounded(), nn.Flatten(), nn.Linear(PIXELS, 3)), "0").eval()
    with pytest.raises(UsageError, match="jump"):
        FisherNoise(0.01).rebuild(split, image_set(8, "example").images)


def test_a_later_defence_must_not_move_the_cut() -> None:
    stack = build_defense(["fisher-noise", "bottleneck:channels=2"])
    assert isinstance(stack, Stack)
    assert isinstance(stack.parts[1], Bottleneck)
    split = stack.rebuild(small_split(), image_set(2, "example").images)
    with pytest.raises(UsageError, match="last"):
        stack.setup(split, image_set(8, "x"), seeds.generator(0))


def test_it_needs_training() -> None:
    settings = {"data": "digits", "model": "convnet", "training": {"epochs": 0}, "defenses": ["fisher-noise"]}
    with pytest.raises(UsageError, match="fisher-noise acts in training only"):
        make_plan(AuditConfig.checked({**settings, "attacks": ["ridge"]}))


def test_a_bound_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="mean squared error"):
        FisherNoise(-0.1)
