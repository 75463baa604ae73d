"""Orthogonal steps against singular values, PyTorch's own Muon, and a problem that Adam is slow on."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks._correction import Size
from leakscope.attacks._orthogonal import OrthogonalSteps, orthogonal


def _spread(rows: int, columns: int, smallest: float) -> Tensor:
    """A matrix whose singular values fall evenly, in logarithms, from 1 to `smallest`."""
    rng = torch.Generator().manual_seed(rows)
    count = min(rows, columns)
    u, _ = torch.linalg.qr(torch.randn(rows, count, generator=rng))
    v, _ = torch.linalg.qr(torch.randn(columns, count, generator=rng))
    middle = torch.diag(torch.logspace(0, math.log10(smallest), count))
    product: Tensor = u @ middle @ v.T
    return product


@pytest.mark.parametrize(("rows", "columns"), [(12, 40), (40, 12), (16, 16)])
def test_singular_values_come_close_to_one_and_their_vectors_stay(rows: int, columns: int) -> None:
    matrix = _spread(rows, columns, 0.05)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    turned = u.T @ orthogonal(matrix) @ v.T
    values = turned.diagonal()
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert (turned - torch.diag(values)).abs().max() < 1e-4


def test_nothing_moves_without_a_gradient() -> None:
    assert orthogonal(torch.zeros(3, 5)).abs().max() == 0
    weight = nn.Parameter(torch.ones(2, 3, 1, 1))
    OrthogonalSteps([weight], lr=0.1).step()
    assert torch.equal(weight, torch.ones(2, 3, 1, 1))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon to compare with")
@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
def test_steps_are_those_of_pytorchs_muon(shape: tuple[int, int]) -> None:
    rng = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=rng)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = OrthogonalSteps([ours], lr=0.1)
    muon = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0)
    for _ in range(4):
        gradient = torch.randn(shape, generator=rng)
        for weight, optimizer in ((ours, own), (theirs, muon)):
            weight.grad = gradient.clone()
            optimizer.step()
    moved = (theirs - start).norm()
    assert moved > 0.3
    assert (ours - theirs).norm() / moved < 0.02  # theirs iterates in half precision


def _left(optimizer_of: Callable[[nn.Parameter, float], torch.optim.Optimizer], rate: float) -> float:
    """The share of a linear map that is not learnt after 150 steps, from inputs whose sizes differ a hundredfold."""
    rng = torch.Generator().manual_seed(1)
    mix = torch.linalg.qr(torch.randn(16, 16, generator=rng))[0] * torch.logspace(0, -2, 16)
    truth, weight = torch.randn(16, 16, generator=rng), nn.Parameter(torch.zeros(16, 16))
    optimizer = optimizer_of(weight, rate)
    for step in range(150):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / 150)
        optimizer.zero_grad()
        ((weight - truth) @ mix).square().sum().backward()
        optimizer.step()
    return float((weight.detach() - truth).square().mean() / truth.square().mean())


def test_rare_directions_are_learnt_sooner_than_by_adam_at_its_best_rate() -> None:
    rates = (0.03, 0.1, 0.3, 1.0)
    ours = min(_left(lambda weight, rate: OrthogonalSteps([weight], rate), rate) for rate in rates)
    adam = min(_left(lambda weight, rate: torch.optim.Adam([weight], rate), rate) for rate in rates)
    assert ours < 0.5 * adam, (ours, adam)


def test_the_layer_that_starts_at_zero_is_the_last() -> None:
    network = Size(16, 1).build((8, 7, 7), (1, 28, 28), seed=0)
    assert network.last.weight.abs().max() == 0
    assert sum(weight is network.last.weight for weight in network.parameters()) == 1
    assert len(network.state_dict()) == len(list(network.parameters()))
