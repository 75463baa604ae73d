"""The two descents in Z: GMI's lookahead momentum on points, KEDMI's Adam on Gaussians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._class_search import Course, value_and_gradient
from leakscope.attacks._draws import ClassDraws
from leakscope.core.prior import Generator

_PUBLISHED_BATCH = 60  # identities; the published loss is their mean, and plain descent is not scale-free

#: Pictures, their classes, and the draws of a chunk's classes → one number a picture.
IdentityTerm = Callable[[Tensor, Tensor, ClassDraws], Tensor]


@dataclass(frozen=True)
class Lookahead:
    """v ← m·v − η·g/60, z ← clip(z − m·v_before + (1 + m)·v), from z ~ N(0, I), once for each picture."""

    steps: int
    learning_rate: float
    momentum: float = 0.9
    weight: float = 100.0
    bound: float = 1.0

    def __call__(
        self, generator: Generator, term: IdentityTerm, classes: Tensor, images: int, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        labels = classes.repeat_interleave(images)

        def objective(z: Tensor) -> Tensor:
            pictures = generator.decode(z)
            return generator.implausibility(pictures) + self.weight * term(pictures, labels, draws)

        z = draws.normal(images, generator.latent).flatten(0, 1)
        v = torch.zeros_like(z)
        for _ in range(self.steps):
            value, (gradient,) = value_and_gradient(objective, z)
            course.step(value, gradient)
            z, v = self.step(z, v, gradient / _PUBLISHED_BATCH)
        with torch.no_grad():
            return generator.decode(z), objective(z)

    def step(self, z: Tensor, v: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        new = self.momentum * v - self.learning_rate * gradient
        z = z - self.momentum * v + (1 + self.momentum) * new
        return z.clamp(-self.bound, self.bound), new


@dataclass(frozen=True)
class GaussianDescent:
    """Adam on (μ, log σ²) of one Gaussian a class; each step sees one fresh z = clip(μ + σ⊙ε)."""

    steps: int
    learning_rate: float
    log_variance: float = 0.0
    weight: float = 100.0
    bound: float = 1.0

    def __call__(
        self, generator: Generator, term: IdentityTerm, classes: Tensor, images: int, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        def cost(z: Tensor, labels: Tensor) -> Tensor:
            pictures = generator.decode(z)
            return generator.implausibility(pictures) + self.weight * term(pictures, labels, draws)

        mean = torch.zeros(len(classes), generator.latent, device=classes.device)
        log_variance = torch.full_like(mean, self.log_variance)
        adam = torch.optim.Adam([mean, log_variance], self.learning_rate)
        for _ in range(self.steps):
            noise = draws.normal(generator.latent)
            value, gradients = value_and_gradient(
                lambda m, s, noise=noise: cost(self._draw(m, s, noise), classes), mean, log_variance
            )
            course.step(value, gradients[0])
            mean.grad, log_variance.grad = gradients
            adam.step()
        noise = draws.normal(images, generator.latent)
        z = self._draw(mean[:, None], log_variance[:, None], noise).flatten(0, 1)
        with torch.no_grad():
            return generator.decode(z), cost(z, classes.repeat_interleave(images))

    def _draw(self, mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
        return (mean + torch.exp(0.5 * log_variance) * noise).clamp(-self.bound, self.bound)
