"""Fisher information against closed forms, and jumps that no derivative sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.nn.fisher import JUMPS, fisher_traces, unexplained
from leakscope.testing.synthetic import small_split, smooth_images


def rng() -> torch.Generator:
    return seeds.generator(0, "probes")


def test_of_a_linear_encoder_it_is_the_sum_of_squared_weights() -> None:
    matrix = torch.randn(12, 256, generator=seeds.generator(0, "matrix"))
    images = smooth_images(5, "linear")
    exact = fisher_traces(lambda x: x.flatten(1) @ matrix.T, images, 12, rng())
    torch.testing.assert_close(exact, matrix.square().sum().expand(5))


def test_of_a_network_it_is_the_sum_of_squared_derivatives() -> None:
    split, images = small_split(), smooth_images(3, "network")
    jacobian = torch.autograd.functional.jacobian(lambda x: split.encode(x).flatten(1).sum(0), images)  # D×N×C×H×W
    assert isinstance(jacobian, Tensor)
    expected = jacobian.square().sum((0, 2, 3, 4))
    torch.testing.assert_close(fisher_traces(split.encode, images, 512, rng()), expected)
    random = torch.stack([fisher_traces(split.encode, images, 16, seeds.generator(i, "p")) for i in range(40)])
    error = random.std(0) / 40**0.5
    assert ((random.mean(0) - expected).abs() < 5 * error).all()
    assert (error < 0.1 * expected).all()


def test_a_constant_tells_nothing() -> None:
    images = smooth_images(2, "constant")
    assert fisher_traces(lambda x: torch.ones(len(x), 3), images, 8, rng()).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("layer", "jumps"),
    [
        (nn.Identity(), False),
        (nn.ReLU(), False),
        (nn.Tanh(), False),
        (nn.MaxPool2d(2), False),
        (nn.Threshold(0.5, 0.0), True),
    ],
)
def test_jumps_are_told_from_kinks(layer: nn.Module, jumps: bool) -> None:
    mix = small_split()

    def encode(x: Tensor) -> Tensor:
        z: Tensor = layer(mix.encode(x) if not jumps else x)
        return z

    found = unexplained(encode, smooth_images(64, "one"), smooth_images(64, "two"), rng())
    assert (found > JUMPS) == jumps


def test_rounding_and_its_steep_imitation_jump() -> None:
    one, two = smooth_images(64, "one"), smooth_images(64, "two")
    assert unexplained(lambda x: (x * 4).round(), one, two, rng()) == pytest.approx(1, abs=1e-6)

    def steep(x: Tensor) -> Tensor:
        return (x * 4).floor() + torch.sigmoid(5000 * (x * 4 - (x * 4).floor() - 0.5))

    assert unexplained(steep, one, two, rng()) > JUMPS
