"""What to expect of a release: a differentiable stand-in for a random, or a gradient-hiding, one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._release import channel_statistics, child, nearly, same_release
from leakscope.core.defense import Defense

#: `expected(z, rows, count)`: the release to expect of clean features z, rows `rows` of a batch of `count`.
Expected = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class ReleaseModel:
    """What the attacker works out about a defence before it searches."""

    expected: Expected
    noise: float  # mean squared deviation of a release from its expectation
    withholds: bool  # sends exact zeros at random, which say nothing about the feature
    additive: bool = False  # noise that does not depend on the features: releases of one picture may be averaged

    def informative(self, seen: Tensor) -> Tensor:
        """One where a seen value is evidence, zero where it was withheld."""
        return (seen != 0).to(seen.dtype) if self.withholds else torch.ones_like(seen)


def learn_release(defense: Defense, clean: Tensor, draws: int, rng: torch.Generator) -> ReleaseModel:
    """Find out, on the clean features of some pictures, how to predict the release.

    In order: a release that passes values on up to one gain, or adds noise that does not depend on
    them, is expected to be that gain times the value. One whose gradient is zero (rounding,
    thresholds) is replaced by its best affine fit per channel, forwards and backwards: the
    straight-through estimate, but with values that agree with the gradient, as a line search needs.
    Any other is averaged over `draws` draws with common random numbers.

    Athalye, Carlini & Wagner, "Obfuscated gradients", 2018 (BPDA and expectation over randomness).
    """
    seeds: list[int] = torch.randint(2**62, (max(draws, 2),), generator=rng, device=rng.device).tolist()

    def release(z: Tensor, seed: int) -> Tensor:
        return defense.release(z, torch.Generator(device=z.device).manual_seed(seed))

    with torch.no_grad():
        first, second = release(clean, seeds[0]), release(clean, seeds[1])
        moved = 0.5 * clean + clean.flatten(1).roll(1, 1).view_as(clean)
        elsewhere = release(moved, seeds[0])
    if first.shape != clean.shape:
        # Features are added, dropped or replaced: no value is that of one feature.
        random = not same_release(first, second)
        return _reshaped(release, clean, tuple(seeds) if random else (seeds[0],), first)
    withheld = (first == 0) & (clean != 0)
    same, withholds = torch.stack((nearly(first, second), withheld.any())).tolist()  # an accelerator waits once
    random, withholds = not same, not same and withholds
    alive = (~withheld).to(clean.dtype) if withholds else torch.ones_like(clean)

    gain = (alive * first * clean).sum() / (alive * clean * clean).sum().clamp_min(1e-30)
    # The same noise at another place, where neither place was withheld.
    both = alive * ((elsewhere != 0) | (moved == 0)).to(clean.dtype) if withholds else alive
    expected: Expected
    additive = False
    if same_release(alive * gain * clean, alive * first):
        expected = _Affine(gain, torch.zeros((), device=clean.device))
    elif random and same_release(both * (first - clean), both * (elsewhere - moved)):
        expected = _Affine(torch.ones((), device=clean.device), torch.zeros((), device=clean.device))
        additive = not withholds
    elif _hides_gradient(release, clean, seeds[0], rng):
        expected = _fitted(torch.stack([release(clean, seed) for seed in seeds]).mean(0), clean)
    else:
        expected = _Sampled(release, tuple(seeds) if random else (seeds[0],), withholds)
    with torch.no_grad():
        rows = torch.arange(len(clean), device=clean.device)
        residual = alive * (first - expected(clean, rows, len(clean)))
    noise = float(residual.square().sum() / alive.sum().clamp_min(1))
    return ReleaseModel(expected, noise, withholds, additive)


def _reshaped(
    release: Callable[[Tensor, int], Tensor], clean: Tensor, seeds: tuple[int, ...], first: Tensor
) -> ReleaseModel:
    """A release of another shape than the features, by its mean over draws."""
    sampled = _Sampled(release, seeds, False)

    def expected(z: Tensor, rows: Tensor, count: int) -> Tensor:
        found = sampled(z, rows, count)
        if z.requires_grad and not found.requires_grad:
            # A label or a code has no gradient: zero, so that a search sees that it sees nothing.
            found = found + 0 * z.flatten(1).sum(1).view(-1, *[1] * (found.ndim - 1))
        return found

    with torch.no_grad():
        residual = first - expected(clean, torch.arange(len(clean), device=clean.device), len(clean))
    return ReleaseModel(expected, float(residual.square().mean()), False)


def _hides_gradient(release: Callable[[Tensor, int], Tensor], clean: Tensor, seed: int, rng: torch.Generator) -> bool:
    """Whether nearly all values that are released carry no gradient back to the feature they come from."""
    z = clean.detach().clone().requires_grad_()
    with torch.enable_grad():
        released = release(z, seed)
    if not released.requires_grad:
        return True
    weight = torch.randn(released.shape, generator=child(rng, released.device), device=released.device)
    (gradient,) = torch.autograd.grad((released * weight).sum(), z, allow_unused=True)
    if gradient is None:
        return True
    useless = (gradient == 0) | ~gradient.isfinite()
    alive = released.detach() != 0
    return bool(useless[alive].float().mean() > 0.9) if alive.any() else True


def _fitted(released: Tensor, clean: Tensor) -> Expected:
    """Least squares per channel, released ≈ gain·z + offset."""
    clean_mean, clean_deviation = channel_statistics(clean)
    mean, _ = channel_statistics(released)
    product, _ = channel_statistics((clean - clean_mean) * (released - mean))
    gain = product / clean_deviation.square()
    # A channel whose probes never cross a threshold shows no slope; the identity is the better guess.
    gain = torch.where(gain.abs() > 1e-3, gain, 1.0)
    return _Affine(gain, mean - gain * clean_mean)


@dataclass(frozen=True)
class _Affine:
    gain: Tensor
    offset: Tensor

    def __call__(self, z: Tensor, rows: Tensor, count: int) -> Tensor:
        return self.gain * z + self.offset


@dataclass(frozen=True)
class _Sampled:
    """The mean of releases under fixed seeds; of those not withheld, when values are withheld."""

    release: Callable[[Tensor, int], Tensor]
    seeds: tuple[int, ...]
    withholds: bool

    def __call__(self, z: Tensor, rows: Tensor, count: int) -> Tensor:
        # A row must meet the same noise whichever other rows are evaluated beside it.
        whole = z.new_zeros(count, *z.shape[1:]).index_copy(0, rows, z)
        released = torch.stack([self.release(whole, seed)[rows] for seed in self.seeds])
        if not self.withholds:
            return released.mean(0)
        return released.sum(0) / (released != 0).sum(0).clamp_min(1)
