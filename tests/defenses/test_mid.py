"""The variational bottleneck: its divergence, its noise, where it stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakscope.core import seeds
from leakscope.core.defense import build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses.mid import Mid, Variational, VariationalSplit, divergence
from leakscope.testing.synthetic import image_set, small_split


def test_divergence_has_its_known_value() -> None:
    """KL(N(μ, σ²) ‖ N(0, 1)) for μ = (.5, −1), σ = (.5, 2), from the specification, and from torch."""
    mean, deviation = torch.tensor([[0.5, -1.0]]), torch.tensor([[0.5, 2.0]])
    assert divergence(mean, deviation).item() == pytest.approx(1.75, abs=1e-6)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(mean, deviation), normal(0.0, 1.0)).sum()
    assert divergence(mean, deviation).item() == pytest.approx(expected.item(), abs=1e-6)


def _built(defense: Mid) -> tuple[SplitModel, torch.Tensor]:
    x = image_set(6, "mid").images
    with seeds.ambient(0, "mid"):
        split = defense.rebuild(small_split(), x)
    split.defense = defense
    return split, x


def test_it_replaces_the_layer_of_the_scores() -> None:
    original = small_split()
    split, x = _built(Mid(0.01))
    layer = split.model.get_submodule("rest.3")
    assert isinstance(layer, Variational)
    assert layer.statistics.in_features == 32
    assert layer.statistics.out_features == 2 * 16
    assert isinstance(original.model.get_submodule("rest.3"), nn.Linear)
    assert torch.equal(split.encode(x), original.encode(x))
    assert split.cut == original.cut


def _before_the_layer(split: SplitModel) -> nn.Module:
    rest = split.model.get_submodule("rest")
    assert isinstance(rest, nn.Sequential)
    return rest[:3]


def test_scores_are_the_formula_with_the_noise_of_the_generator() -> None:
    split, x = _built(Mid(0.01))
    layer = split.model.get_submodule("rest.3")
    assert isinstance(layer, Variational)
    with torch.no_grad():
        layer.statistics.bias[16:] += 5  # so that the noise shows
        scores = split.run(x, seeds.generator(3, "noise")).scores
        features = _before_the_layer(split)(split.encode(x))
        mean, raw = layer.statistics(features).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=seeds.generator(3, "noise"))
        expected = layer.scores(mean + nn.functional.softplus(raw - 5) * noise)
        again = split.run(x, seeds.generator(4, "noise")).scores
    torch.testing.assert_close(scores, expected)
    assert not torch.allclose(scores, again, atol=1e-3)
    assert layer.rng is None


def test_the_mean_is_sent_when_asked_to() -> None:
    split, x = _built(Mid(0.01, at_release=False))
    first, second = (split.eval().run(x, seeds.generator(seed, "n")).scores for seed in (0, 1))
    assert torch.equal(first, second)
    split.train()
    first, second = (split.run(x, seeds.generator(seed, "n")).scores for seed in (0, 1))
    assert not torch.equal(first, second)


def test_the_penalty_is_that_of_the_private_pictures() -> None:
    split, x = _built(Mid(0.5))
    layer = split.model.get_submodule("rest.3")
    assert isinstance(layer, Variational)
    split.train()
    split.run(x)
    features = _before_the_layer(split)(split.encode(x))
    mean, raw = layer.statistics(features).chunk(2, 1)
    expected = divergence(mean, nn.functional.softplus(raw - 5)).mean()
    split.run(torch.zeros_like(x))  # a second pass in the same step, of a generator's pictures
    assert layer.divergence is not None
    assert layer.divergence.item() == pytest.approx(expected.item(), rel=1e-5)


def test_an_order_in_which_it_would_lose_its_generator_is_refused() -> None:
    x, data = image_set(6, "mid").images, image_set(6, "mid")
    for spec, fine in (("bottleneck:2+mid", True), ("mid+bottleneck:2", False), ("mid+dp-sgd", True)):
        defense = build_defense(spec)
        split = defense.rebuild(small_split(), x)
        if fine:
            assert isinstance(split, VariationalSplit)
            defense.setup(split, data, seeds.generator(0, "s"))
        else:
            with pytest.raises(UsageError, match="last among"):
                defense.setup(split, data, seeds.generator(0, "s"))


def test_layers_that_cannot_be_replaced_are_named() -> None:
    x = image_set(6, "mid").images
    with pytest.raises(UsageError, match=r"'features.0' is not a linear layer"):
        Mid(layer="features.0").rebuild(small_split(), x)
    convolutional = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(UsageError, match="name one with layer="):
        Mid().rebuild(SplitModel(convolutional, "0"), x)
    with pytest.raises(ValueError, match="at least 1"):
        Mid(width=0)
