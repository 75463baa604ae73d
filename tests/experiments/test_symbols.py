"""Symbols are found in every form of a secret book, and neither in features nor in numbers on a scale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.experiments.symbols import same_book, symbols

PICTURES = torch.rand(128, 64, generator=seeds.generator(0, "symbols"), dtype=torch.float64)
WEIGHTS = torch.randn(64, 48, generator=seeds.generator(1, "symbols"), dtype=torch.float64) / 8


def rolled(x: Tensor) -> Tensor:
    """A hash: pseudo-random numbers in [0, 1) that share nothing between neighbours."""
    return (x * 12.9898).sin().mul(43758.5453).remainder(1)


def words(x: Tensor) -> Tensor:
    """Eight groups of scattered pixels in two greys, each a number of 0 … 255."""
    grey = (x.view(-1, 8, 8).transpose(1, 2) > 0.5).double()
    return grey @ 2.0 ** torch.arange(8, dtype=torch.float64)


def bits(x: Tensor, key: float = 0.0) -> Tensor:
    places = torch.arange(1, 9, dtype=torch.float64)
    return rolled(words(x)[..., None] * 3.7 + places * 78.233 + key).round().flatten(1)


def numbers(x: Tensor) -> Tensor:
    return (rolled(words(x)) * 65536).floor()


def digits(x: Tensor) -> Tensor:
    """As `numbers`, in two digits of base eight."""
    number = (rolled(words(x)) * 64).floor()
    return torch.cat((number // 8, number % 8), 1)


def blurred(x: Tensor) -> Tensor:
    """Bits under a little pseudo-noise that follows from the picture."""
    return bits(x) + 1e-3 * rolled(x[:, :1] * 1e6 + torch.arange(64))


def beside_scores(x: Tensor) -> Tensor:
    return torch.cat((bits(x) + 1e-3 * x, features(x)), 1)


def mixed(x: Tensor) -> Tensor:
    """Bits under a rotation: many values, of which a visible change moves each a little."""
    turn: Tensor = torch.linalg.qr(torch.randn(64, 64, generator=seeds.generator(4, "symbols"), dtype=torch.float64)).Q
    return bits(x) @ turn


def diluted(x: Tensor) -> Tensor:
    """Bits among many numbers that hold three, of which nothing about the bits can be read."""
    return torch.cat((bits(x), (x[:, :3] @ torch.arange(1.0, 2401.0, dtype=torch.float64).view(3, -1)).sin()), 1)


def mixed_and_diluted(x: Tensor) -> Tensor:
    return torch.cat((mixed(x), diluted(x)[:, 64:]), 1)


def features(x: Tensor) -> Tensor:
    return x @ WEIGHTS


def rectified(x: Tensor) -> Tensor:
    return (features(x) - features(x).mean()).relu()


def whole_numbers(x: Tensor) -> Tensor:
    return (features(x) * 40).round()


def found(release: Callable[[Tensor], Tensor]) -> Tensor:
    noise = torch.randn(PICTURES.shape, generator=seeds.generator(2, "symbols"), dtype=torch.float64)
    x, nudged, changed = (release((PICTURES + size * noise).clamp(0, 1)) for size in (0, 2e-3, 5e-2))
    return symbols(x, nudged, changed, torch.zeros(x.shape[1], dtype=torch.float64))[0]


@pytest.mark.parametrize(
    ("release", "least"),
    [
        (bits, 60),
        (numbers, 8),
        (digits, 16),
        (blurred, 60),
        (beside_scores, 60),
        (mixed, 60),
        (diluted, 60),
        (mixed_and_diluted, 60),
    ],
)
def test_books_are_found_and_tell_every_picture(release: Callable[[Tensor], Tensor], least: int) -> None:
    read = found(release)
    assert read.shape[1] >= least
    assert len(read.unique(dim=0)) == len(PICTURES)


@pytest.mark.parametrize("release", [features, rectified, whole_numbers])
def test_features_and_scales_are_no_symbols(release: Callable[[Tensor], Tensor]) -> None:
    assert found(release).shape[1] == 0


def test_noise_keeps_the_book_and_a_key_does_not() -> None:
    flips = torch.rand(64, generator=seeds.generator(3, "symbols")) > 0.5
    assert same_book(bits(PICTURES), (bits(PICTURES) - flips.double()).abs())
    assert not same_book(bits(PICTURES), bits(PICTURES, key=17.3))
