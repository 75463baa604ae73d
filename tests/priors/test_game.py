"""The average of weights, and the statistics that go with it."""

from __future__ import annotations

import torch
from torch import nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.seeds import generator
from leakscope.nn.averages import follow, warmed_up
from leakscope.priors._convolutional import Upward, ladder, recalibrate
from leakscope.priors._game import Players
from leakscope.priors._opening import imitate_components
from leakscope.priors.linear import Linear
from leakscope.testing.synthetic import CPU, smooth_images


def test_the_average_is_the_recursion_it_claims_to_be() -> None:
    with seeds.ambient(0, "nets"):
        average, network = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        truth = average.weight.detach().double().clone()
        for step in range(30):
            with torch.no_grad():
                network.weight.normal_()
                network.running_mean.normal_()  # type: ignore[union-attr]
            beta = min(0.6, (1 + step) / (10 + step))
            truth = beta * truth + (1 - beta) * network.weight.detach().double()
            follow(average, network, warmed_up(0.6, step))
    torch.testing.assert_close(average.weight.detach().double(), truth, atol=1e-6, rtol=1e-6)
    assert torch.equal(average.running_mean, network.running_mean)  # type: ignore[arg-type]


def test_recalibrated_statistics_make_eval_mode_what_training_mode_shows() -> None:
    with seeds.ambient(0, "nets"):
        network = Upward((1, 16, 16), 5, 4)
        z = torch.randn(64, 5)
    recalibrate(network, z, 64)
    shown = network(z)
    network.train()
    # Running variances are the unbiased ones, a 64/63 apart from those of a batch.
    torch.testing.assert_close(shown, network(z), atol=5e-3, rtol=0)
    assert {norm.momentum for norm in network.modules() if isinstance(norm, nn.BatchNorm2d)} == {0.1}


def test_the_ladder_ends_at_four_to_seven_pixels() -> None:
    assert [ladder((1, size, size)) for size in (16, 28, 32, 64, 112)] == [(4, 2), (7, 2), (4, 3), (4, 4), (7, 4)]


def test_an_opening_ends_near_the_linear_prior() -> None:
    images = smooth_images(60, "public")
    linear = Linear(6)
    data = ImageSet(images, torch.zeros(60, dtype=torch.int64), ("a",))
    truth = linear.generator(linear.fit(data, generator(0, "fit"), device=CPU), CPU)
    with seeds.ambient(0, "nets"):
        players = Players(Upward((1, 16, 16), 6, 8), nn.Linear(1, 1))
    z = torch.randn(200, 6, generator=generator(0, "z"))

    def error() -> float:
        """Share of the linear prior's variance that the averaged network misses."""
        with torch.no_grad():
            aim = truth.decode(z)
            return float((players.average(z) - aim).square().mean() / aim.var(0).mean())

    before = error()
    imitate_components(players, images, latent=6, steps=60, batch=32, learning_rate=1e-2, seed=0)
    recalibrate(players.average, z, 200)
    assert before > 1
    assert error() < 0.5
