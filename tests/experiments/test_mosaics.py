"""Mosaics are read from every code that keeps the picture, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.experiments.mosaics import read_in_mosaics

PICTURES = torch.rand(16, 1, 8, 8, generator=seeds.generator(0, "mosaics"))
PIXELS = 64


def plain(x: Tensor, seed: int) -> Tensor:
    return x.flatten(1).double()


def constant(x: Tensor, seed: int) -> Tensor:
    return torch.ones(len(x), 5, dtype=torch.float64)


def three_numbers(x: Tensor, seed: int) -> Tensor:
    """Of 45 things at most three can be told."""
    return x.flatten(1).double() @ torch.randn(PIXELS, 3, generator=seeds.generator(1, "w"), dtype=torch.float64)


def noise(x: Tensor, seed: int) -> Tensor:
    """The same for every picture, as the probes draw it, and unknown to an attacker."""
    return plain(x, seed) + 5 * torch.randn(PIXELS, generator=seeds.generator(seed, "n"), dtype=torch.float64)


def book(x: Tensor, seed: int) -> Tensor:
    """Every quarter as the bits of a secret number: a hash that has no order."""
    quarters = x.unfold(2, 4, 4).unfold(3, 4, 4).reshape(len(x), 4, 16).double()
    weights = torch.linspace(3.1, 97.7, 16, dtype=torch.float64) * (1 + seed)
    key = (quarters > 0.5).double() @ weights
    places = torch.arange(1, 17, dtype=torch.float64)
    return ((key[..., None] * 12.9898 + places * 78.233).sin() * 43758.5453).remainder(1).round().flatten(1)


def one_book(x: Tensor, seed: int) -> Tensor:
    return book(x, 0)


@pytest.mark.parametrize(
    ("release", "least", "most"),
    [(plain, 0.95, 1.0), (constant, 0.0, 0.0), (three_numbers, 0.0, 0.12), (noise, 0.0, 0.0), (one_book, 0.8, 1.0),
     (book, 0.8, 1.0)],
)  # fmt: skip
def test_what_is_read(release: Callable[[Tensor, int], Tensor], least: float, most: float) -> None:
    assert least <= read_in_mosaics(release, PICTURES) <= most


def test_pictures_too_few_or_too_small_are_not_asked() -> None:
    assert read_in_mosaics(plain, PICTURES[:3]) == 0
    assert read_in_mosaics(plain, PICTURES[:, :, :1, :1]) == 0
