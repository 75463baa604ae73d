"""Descents in Z, GMI's lookahead momentum on points and KEDMI's Adam on Gaussians, and the attacks that use them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.attacks._class_search import ClassAttack, Course, classes_of, rebuild, value_and_gradient
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._identity_losses import cross_entropy
from leakscope.attacks._white_box import WhiteBox
from leakscope.core.attack import Observed, Prepared, Reconstruction
from leakscope.core.prior import Generator
from leakscope.core.threat import Access, View

_PUBLISHED_BATCH = 60  # identities; the published loss is their mean, and plain descent is not scale-free

#: Pictures, their classes, and the draws of a chunk's classes → one number per picture.
IdentityTerm = Callable[[Tensor, Tensor, ClassDraws], Tensor]


@runtime_checkable
class DrawingTerm(Protocol):
    """An identity term that draws numbers at every call: it tells their shapes, so that they can be fetched ahead."""

    def drawn(self, each: int) -> tuple[tuple[int, ...], ...]: ...


def drawn_by(term: IdentityTerm, each: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of what a term draws at every call."""
    return term.drawn(each) if isinstance(term, DrawingTerm) else ()


@dataclass(frozen=True)
class Descent:
    """min over latents of implausibility(G(z)) + `weight`·identity(G(z), y), z in [−bound, bound]."""

    steps: int
    learning_rate: float
    weight: float = 100.0
    bound: float = 1.0

    @abstractmethod
    def rows(self, images: int) -> int:
        """Pictures of a class under way at once when `images` are wanted."""

    @abstractmethod
    def __call__(
        self, generator: Generator, term: IdentityTerm, classes: Tensor, images: int, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        """Pictures (class-major) and their final objectives."""

    def cost(self, generator: Generator, term: IdentityTerm, z: Tensor, labels: Tensor, draws: ClassDraws) -> Tensor:
        pictures = generator.decode(z)
        return generator.implausibility(pictures) + self.weight * term(pictures, labels, draws)


@dataclass(frozen=True)
class Lookahead(Descent):
    """v ← m·v − η·g/60, z ← clip(z − m·v_before + (1 + m)·v), from z ~ N(0, I), once for each picture."""

    momentum: float = 0.9

    def rows(self, images: int) -> int:
        return images

    def __call__(
        self, generator: Generator, term: IdentityTerm, classes: Tensor, images: int, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        labels = classes.repeat_interleave(images)

        def objective(z: Tensor) -> Tensor:
            return self.cost(generator, term, z, labels, draws)

        z = draws.normal(images, generator.latent).flatten(0, 1)
        v = torch.zeros_like(z)
        draws.ahead(self.steps, *drawn_by(term, images))
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
class GaussianDescent(Descent):
    """Adam on (μ, log σ²) of one Gaussian per class; each step sees one fresh z = clip(μ + σ⊙ε)."""

    log_variance: float = 0.0

    def rows(self, images: int) -> int:
        return 1

    def __call__(
        self, generator: Generator, term: IdentityTerm, classes: Tensor, images: int, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        def cost(z: Tensor, labels: Tensor) -> Tensor:
            return self.cost(generator, term, z, labels, draws)

        mean = torch.zeros(len(classes), generator.latent, device=classes.device)
        log_variance = torch.full_like(mean, self.log_variance)
        adam = torch.optim.Adam([mean, log_variance], self.learning_rate)
        draws.ahead(self.steps, (generator.latent,), *drawn_by(term, 1))
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


class LatentAttack(ClassAttack):
    """An attack that descends in the latents of its prior, by `descent` and towards what `identity` asks for."""

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.HEAD})
    white_box: ClassVar[bool] = True

    images: int
    steps: int

    @property
    @abstractmethod
    def descent(self) -> Descent:
        """How latents move."""

    def identity(self, view: View, prepared: Prepared, rng: torch.Generator) -> IdentityTerm:
        """How far a picture is from its class: the target's cross-entropy, unless the attack knows better."""
        target = WhiteBox(view, rng)
        return lambda images, labels, draws: cross_entropy(target.scores(images), labels)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        term, descent = self.identity(view, prepared, rng), self.descent
        seed, generator = seed_from(rng), view.prior(self.prior)
        return rebuild(
            self.kind_name,
            classes_of(seen, view, self.kind_name),
            per_class=self.images,
            rows=descent.rows(self.images),
            steps=self.steps,
            search=lambda chunk, course: descent(
                generator, term, chunk, self.images, ClassDraws(seed, "latents", chunk, view.device), course
            ),
        )
