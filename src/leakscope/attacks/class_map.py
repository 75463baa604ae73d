"""The likeliest picture that the target takes for a class, from wherever it looks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._class_search import Course, value_and_gradient
from leakscope.attacks._draws import ClassDraws
from leakscope.attacks._latent_descent import Descent, IdentityTerm, drawn_by
from leakscope.attacks._lomma import Lomma
from leakscope.attacks._views import NUMBERS, Views
from leakscope.core.attack import ATTACKS
from leakscope.core.prior import PRIORS, Generator, Prior
from leakscope.core.spec import nested

_BETAS = (0.9, 0.99)


@dataclass(frozen=True)
class ViewedDescent(Descent):
    """Adam on z, one fresh view of every picture a step; the second half of the steps grows shorter."""

    shift: float = 0.0

    def rows(self, images: int) -> int:
        return images

    def __call__(
        self, generator: Generator, term: IdentityTerm, classes: Tensor, images: int, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        labels = classes.repeat_interleave(images)
        views = Views(area=(1.0, 1.0), mirrored=0.5, shift=self.shift)

        def objective(z: Tensor, seen: Tensor) -> Tensor:
            return self.weight * z.square().sum(1) / 2 + term(seen, labels, draws)

        z = draws.normal(images, generator.latent).flatten(0, 1).clamp(-self.bound, self.bound)
        adam = torch.optim.Adam([z], self.learning_rate, betas=_BETAS)
        draws.ahead(self.steps, (images, NUMBERS), *drawn_by(term, images))
        for step in range(self.steps):
            uniform = torch.special.ndtr(draws.normal(images, NUMBERS).flatten(0, 1))
            value, (gradient,) = value_and_gradient(
                lambda z, uniform=uniform: objective(z, views(generator.decode(z), uniform)), z
            )
            course.step(value, gradient)
            adam.param_groups[0]["lr"] = self.learning_rate * min(1.0, 2 * (1 - step / self.steps))
            z.grad = gradient
            adam.step()
            z.clamp_(-self.bound, self.bound)
        with torch.no_grad():
            pictures = generator.decode(z)
            return pictures, objective(z, pictures)


@ATTACKS.register("class-map")
@dataclass(frozen=True)
class ClassMap(Lomma):
    """Descends to the most probable latent whose picture the target takes for the class in shifted and mirrored views.

    min_z `weight`·‖z‖²/2 + L_id(view(G(z)), y) over z in [−1, 1], from z ~ N(0, I), by Adam;

    ‖z‖²/2 is the negative log density of the latents, L_id is LOMMA's identity term (`attacks._lomma`: −logit_y plus a
    pull of the features to their public mean), and `view` moves the picture by up to `shift` of its side and mirrors
    every second one, anew at every step. A network that was trained on shifted and mirrored pictures knows a face from
    all of them, and a pattern that only one pixel grid makes it see from one.

    The default prior is Gaussian: principal components of the public pictures (Turk & Pentland, "Eigenfaces for
    recognition", 1991), which need no training. On ten thousand public faces it rebuilt more than attacks with a GAN of
    some minutes' training (docs/results/faces.md); against GANs of published size it was not compared.

    Ours; views against brittle patterns are those of Struppek et al., "Plug & Play Attacks", 2022.
    """

    prior: Prior = nested(PRIORS, "linear:components=400")
    steps: int = 200
    learning_rate: float = 0.05
    students: tuple[int, ...] = ()
    weight: float = 0.04
    shift: float = 0.0625  # of the side: two pixels of 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight < 0 or not 0 <= self.shift < 1:
            raise ValueError("weight must be 0 or more, and shift a share of the side: 0 or more, below 1")

    @property
    def descent(self) -> ViewedDescent:
        return ViewedDescent(self.steps, self.learning_rate, weight=self.weight, shift=self.shift)
