"""The bottleneck: where the cut moves, what is sent, and that the server gets its shape back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import Defense, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel, cuts
from leakscope.defenses.bottleneck import Bottleneck
from leakscope.defenses.gaussian import Gaussian


def network(side: int) -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        nn.Conv2d(16, 4, 3),
        nn.Flatten(),
        nn.Linear(4 * (side - 2) ** 2, 12),
        nn.ReLU(inplace=True),
        nn.Linear(12, 3),
    )


def split_at(cut: str, side: int = 8, **options: Any) -> tuple[SplitModel, Tensor]:
    with seeds.ambient(0, "bottleneck"):
        split = SplitModel(network(side), cut, normalize=Normalize((0.5,), (0.25,)), **options).eval()
    return split, torch.rand(2, 1, side, side, generator=seeds.generator(0, "x"))


class Through(Defense):
    """Features behind both layers of a bottleneck, at the old cut: what the server goes on from."""

    def __init__(self, *layers: nn.Module) -> None:
        self.layers = layers

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        for layer in self.layers:
            z = layer(z)
        return z


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("side", "stride", "sent"), [(8, 1, 8), (8, 2, 4), (7, 2, 4), (9, 3, 3), (8, 3, 3), (5, 4, 2)])
@torch.no_grad()
def test_the_cut_moves_and_the_server_goes_on_from_the_widened(side: int, stride: int, sent: int, relu: bool) -> None:
    split, x = split_at("0", side)
    scores = split(x)
    rebuilt = Bottleneck(4, stride=stride, kernel=5, relu=relu).rebuild(split, x)
    assert rebuilt.cut == "0.narrow"
    assert torch.equal(split(x), scores)  # the network it was made from is untouched
    passed = rebuilt.run(x)
    assert tuple(passed.released.shape) == (2, 4, sent, sent)
    assert (passed.features >= 0).all() == relu
    narrow, widen = rebuilt.model.get_submodule("0.narrow"), rebuilt.model.get_submodule("0.widen")
    by_hand = SplitModel(split.model, "0", normalize=split.normalize, defense=Through(narrow, widen)).eval()
    torch.testing.assert_close(passed.scores, by_hand(x))
    client, server = rebuilt.export(x)
    torch.testing.assert_close(server(client(x)), passed.scores)
    assert "0.narrow" in [cut.name for cut in cuts(rebuilt.model, x, rebuilt.normalize)]


@torch.no_grad()
def test_flat_features_and_tokens_are_reduced_by_linear_layers() -> None:
    split, x = split_at("3")
    flat = Bottleneck(2).rebuild(split, x)
    assert flat.release(x).shape == (2, 2)
    assert flat(x).shape == (2, 3)
    tokens = nn.Sequential(nn.Conv2d(1, 6, 4, 4), nn.Flatten(2), nn.Linear(4, 10), nn.Flatten(), nn.Linear(60, 3))
    rebuilt = Bottleneck(3).rebuild(SplitModel(tokens, "2"), x)
    assert rebuilt.release(x).shape == (2, 6, 3)
    assert rebuilt(x).shape == (2, 3)


def test_it_keeps_mode_normalisation_and_release_and_moves_no_statistics() -> None:
    split, x = split_at("0", defense=Gaussian(0.5))
    split.train()
    before = {name: value.clone() for name, value in split.state_dict().items()}
    rebuilt = Bottleneck(4).rebuild(split, x)
    assert rebuilt.training
    assert split.training
    assert all(torch.equal(value, before[name]) for name, value in split.state_dict().items())
    assert rebuilt.normalize is split.normalize
    assert rebuilt.defense is split.defense
    rebuilt.eval()
    noise = rebuilt.release(x, seeds.generator(0, "n")) - rebuilt.encode(x)
    assert noise.shape == (2, 4, 8, 8)
    assert noise.std() > 0.3


def test_a_stack_builds_the_passage_and_adds_noise_in_it() -> None:
    defense = build_defense("bottleneck:4+gaussian:0.5")
    split, x = split_at("0", defense=defense)
    rebuilt = defense.rebuild(split, x)
    sent = rebuilt.release(x, seeds.generator(0, "n"))
    assert sent.shape == (2, 4, 8, 8)
    assert not torch.equal(sent, rebuilt.encode(x))


def test_new_weights_follow_the_ambient_generator_and_train() -> None:
    split, x = split_at("0")

    def made(seed: int) -> SplitModel:
        with seeds.ambient(seed, "rebuild"):
            return Bottleneck(4).rebuild(split, x)

    weights = [made(seed).model.get_submodule("0.narrow").get_parameter("weight") for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    rebuilt = made(0)
    rebuilt(x).sum().backward()
    assert all(p.grad is not None for p in rebuilt.parameters())


class Masked(nn.Module):
    """A layer called with more than one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Bilinear(64, 64, 16)
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.block(x.flatten(1), input2=x.flatten(1)))
        return scores


def test_layers_with_several_arguments_are_narrowed_too() -> None:
    _, x = split_at("0")
    rebuilt = Bottleneck(4).rebuild(SplitModel(Masked(), "block"), x)
    assert rebuilt.release(x).shape == (2, 4)
    assert rebuilt(x).shape == (2, 3)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("bottleneck:0", "at least 1"),
        ("bottleneck:stride=0", "at least 1"),
        ("bottleneck:kernel=2", "odd"),
        ("bottleneck:stride=4", "at least the stride"),
    ],
)
def test_bad_settings_are_said_in_one_line(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_defense(spec)


def test_a_passage_that_is_not_narrow_and_a_stride_over_nothing() -> None:
    split, x = split_at("0")
    with pytest.raises(UsageError, match="sends 1024 numbers where '0' has 1024"):
        Bottleneck(16).rebuild(split, x)
    assert Bottleneck(16, stride=2).rebuild(split, x).release(x).shape == (2, 16, 4, 4)
    flat, x = split_at("3")
    with pytest.raises(UsageError, match="leave stride at 1"):
        Bottleneck(2, stride=2).rebuild(flat, x)
