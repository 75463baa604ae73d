"""MAP refinement: from a first guess to the picture that also explains the features, held by a Gaussian prior."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._expectation import ReleaseModel
from leakscope.attacks.peeling.lbfgs import minimise
from leakscope.core.devices import widened
from leakscope.core.threat import View

_CHUNK = 64  # pictures refined at once
_LARGEST = 1024  # pixels up to which a whole covariance is inverted
_LEAST_NOISE = 1e-4  # of the features' own deviation: what a release without noise is believed to


@dataclass(frozen=True)
class Held:
    """A Gaussian prior: precision P×P (or P, by pixel), around the guess, or around one mean picture."""

    precision: Tensor
    mean: Tensor | None = None

    @classmethod
    def of_errors(cls, errors: Tensor, *, whole: bool) -> Held:
        """From a first guess's errors (n×P) on pictures that it did not learn from."""
        variance = errors.square().mean(0)
        floor = 0.02 * variance.mean() + 1e-8
        if not whole:
            return cls(1 / (variance + floor))
        # Few errors for many pixels: shrink towards the diagonal.
        rows, pixels = errors.shape
        kept = rows / (rows + 0.25 * pixels)
        covariance = kept * (errors.T @ errors / rows) + torch.diag((1 - kept) * variance + floor)
        return cls(torch.linalg.inv(widened(covariance)).to(errors))

    @classmethod
    def of_pictures(cls, pictures: Tensor) -> Held:
        """From the pictures (n×P) themselves."""
        mean = pictures.mean(0)
        away = widened(pictures - mean)
        covariance = away.T @ away / len(pictures)
        covariance += 0.01 * covariance.diagonal().mean().clamp_min(1e-8) * torch.eye(len(mean), device=away.device)
        return cls(torch.linalg.inv(covariance).to(pictures), mean)

    @staticmethod
    def whole(pixels: int) -> bool:
        return pixels <= _LARGEST

    def apply(self, away: Tensor) -> Tensor:
        return away * self.precision if self.precision.ndim == 1 else away @ self.precision


def refine(
    view: View,
    model: ReleaseModel,
    seen: Tensor,
    guess: Tensor,
    held: Held,
    weight: float,
    iterations: int,
    *,
    start: Tensor | None = None,
    repeats: int = 1,
) -> Tensor:
    """min_x ‖E[release(encoder(x))] − z‖²/2σ² + weight·½(x − m)ᵀP(x − m), from `start`, or the guess, within range.

    m is the guess, or the prior's own mean. σ² is the noise of the release over the `repeats` observations
    that `seen` is the mean of.
    """
    low, high = (0.0, 1.0) if view.public.pixels else (-math.inf, math.inf)
    images = []
    starts = (guess if start is None else start).split(_CHUNK)
    for z, first, begin in zip(seen.split(_CHUNK), guess.split(_CHUNK), starts, strict=True):
        anchor = first.flatten(1) if held.mean is None else held.mean.expand(len(first), -1)
        informative = model.informative(z)
        noise = max(model.noise / repeats, _LEAST_NOISE * float(z.var()), 1e-20)

        def objective(
            x: Tensor, rows: Tensor, z: Tensor = z, anchor: Tensor = anchor, informative: Tensor = informative,
            noise: float = noise, count: int = len(z),
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            pictures = x.detach().reshape(len(x), *view.image_shape).requires_grad_()
            away = x - anchor[rows]
            pull = held.apply(away)
            with torch.enable_grad():
                expected = model.expected(view.encoder(pictures), rows, count)
                gap = ((expected - z[rows]) * informative[rows]).flatten(1)
                fit = gap.square().sum(1) / (2 * noise)
                (gradient,) = torch.autograd.grad(fit.sum(), pictures)
            value = fit.detach() + 0.5 * weight * (away * pull).sum(1)
            return value, gradient.flatten(1) + weight * pull

        found = minimise(objective, begin.flatten(1), iterations=iterations, low=low, high=high)
        images.append(found.x.reshape(first.shape))
    return torch.cat(images)
