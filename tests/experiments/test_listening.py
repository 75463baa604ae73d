"""Listening to both sides of a cut: what is undone, what comes from elsewhere, and what is neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leakscope.core.data import DATASETS, Splits
from leakscope.core.model import SplitModel
from leakscope.data.splits import SplitPlan
from leakscope.experiments.listening import Listened, _coordinates, listen

CPU = torch.device("cpu")


class Halves(nn.Module):
    """Any function before the cut, any function behind it."""

    def __init__(self, client: Callable[[Tensor], Tensor], server: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cut = nn.Identity()
        self.client, self.server = client, server
        rng = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(64, 10, generator=rng))

    def forward(self, x: Tensor) -> Tensor:
        return self.server(self.cut(self.client(x.flatten(1)))) @ self.weight


@pytest.fixture(scope="module")
def parts() -> Splits:
    plan = SplitPlan(private=100, heldout=60, public=240)
    return plan.draw(DATASETS.build("digits").load(None), 0)


def heard(parts: Splits, client: Callable[[Tensor], Tensor], server: Callable[[Tensor], Tensor]) -> Listened:
    return listen(SplitModel(Halves(client, server), "cut").eval(), parts.public, parts.heldout, CPU)


def pad(key: Tensor) -> Tensor:
    return (torch.sin(key * 12.9898 + torch.arange(64) * 78.233) * 43758.5453).remainder(1)


def under_a_key(x: Tensor) -> Tensor:
    key = torch.rand(len(x), 1)
    return torch.cat((key, (0.9 * x + pad(key)).remainder(1)), 1)


def deciphered(r: Tensor) -> Tensor:
    return (r[:, 1:] - pad(r[:, :1])).remainder(1)


ORDER = torch.randperm(64, generator=torch.Generator().manual_seed(1))
MIX = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("client", "server"),
    [
        (lambda x: x, lambda r: r),
        (lambda x: (x @ MIX).relu(), lambda r: (r @ MIX.T).relu()),
        (lambda x: x[:, ORDER], lambda r: 3 * r[:, ORDER.argsort()] - 1),
        (lambda x: x + 0.5 * torch.randn_like(x), lambda r: r.relu()),
        (lambda x: x * (torch.rand_like(x) > 0.3), lambda r: r * 2),
        (lambda x: (x @ MIX / 8).sigmoid(), lambda r: r.logit(1e-6)),
    ],
)
def test_honest_halves_raise_nothing(
    parts: Splits, client: Callable[[Tensor], Tensor], server: Callable[[Tensor], Tensor]
) -> None:
    found = heard(parts, client, server)
    assert not found.undone
    assert not found.opaque


def test_a_pad_that_both_sides_compute_is_undone(parts: Splits) -> None:
    found = heard(parts, under_a_key, deciphered)
    assert found.undone
    assert not found.opaque
    assert found.server_leak > 0.8


def test_so_is_one_that_the_server_uses_for_a_part_only(parts: Splits) -> None:
    def first(r: Tensor) -> Tensor:
        return torch.cat((deciphered(r)[:, :8], torch.zeros(len(r), 56)), 1)

    assert heard(parts, under_a_key, first).undone


@pytest.mark.parametrize("through", [lambda z: z.numpy().copy(), lambda z: z.tolist()])
def test_what_comes_back_from_outside_of_pytorch_is_opaque(parts: Splits, through: Callable[[Tensor], object]) -> None:
    found = heard(parts, under_a_key, lambda r: torch.as_tensor(through(deciphered(r).detach())).float() + 0 * r[:, :1])
    assert found.opaque


def test_coordinates_keep_distances() -> None:
    images = torch.rand(6, 3, 5, 5)
    found = _coordinates(images)
    assert found.shape == (6, 6)
    assert torch.allclose(
        torch.cdist(found, found), torch.cdist(images.flatten(1).double(), images.flatten(1).double())
    )
