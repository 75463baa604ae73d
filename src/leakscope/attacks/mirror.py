"""MIRROR, white box: styles kept where the prior's own styles are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._class_search import ClassAttack, Course, classes_of, rebuild, value_and_gradient
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._identity_losses import cross_entropy
from leakscope.attacks._selection import Pool, draw_pool
from leakscope.attacks._white_box import WhiteBox
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Observed, Prepared, Reconstruction
from leakscope.core.prior import PRIORS, Generator, Prior
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View
from leakscope.nn.style_space import style_bounds

_WEIGHT = 10.0
_MIRRORED = 0.5  # chance that all pictures of a class are mirrored at a step
_RAMP_UP, _RAMP_DOWN = 0.05, 0.25  # shares of all steps


def ramped(progress: float) -> float:
    """The share of the learning rate in use: linear up over the first 5 %, cosine down over the last 25 %."""
    down = 0.5 - 0.5 * math.cos(math.pi * min(1.0, (1 - progress) / _RAMP_DOWN))
    return down * min(1.0, progress / _RAMP_UP)


@ATTACKS.register("mirror")
@dataclass(frozen=True)
class Mirror(ClassAttack):
    """Descends in W from the samples the target likes most, inside a box around common styles.

    min_w 10·CE(T(G(w)), y) by Adam, all pictures of a class mirrored together with probability ½. In P space,
    p = LReLU_5(w), coordinates look Gaussian; after each step w is clipped to the box mean ± `deviations`·σ
    of p over `samples` styles, brought back to W. Each class starts from the `images` samples with the
    highest softmax, and keeps the iterate at which the mean loss of its pictures was lowest.

    An et al., "MIRROR: model inversion for deep learning network with high fidelity", 2022; 500 steps after
    Ho et al., "TL-DMI", 2024 (20 000 in the published code).

    Differs from the paper: truncation acts on all layers.
    """

    prior: Prior = nested(PRIORS, "style")
    images: int = 8
    samples: int = 100_000
    steps: int = 500
    learning_rate: float = 0.25
    truncation: float = 0.7
    deviations: float = 1.0

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.HEAD})
    white_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.images <= self.samples or self.samples < 2:
            raise ValueError("images must be 1 or more and samples at least as many, and 2")
        if self.steps < 0 or self.learning_rate <= 0 or self.deviations <= 0:
            raise ValueError("steps must be 0 or more, learning_rate and deviations positive")

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        target, seed = WhiteBox(view, rng), seed_from(rng)
        generator = view.prior(self.prior)
        box = seeds.generator(seed, "box")
        low, high, _ = style_bounds(
            generator, self.samples, box, deviations=self.deviations, truncation=self.truncation
        )
        pool = draw_pool(generator, self.samples, self.truncation, seed, lambda x: target.scores(x).log_softmax(1))
        return rebuild(
            self.kind_name,
            classes_of(seen, view, self.kind_name),
            per_class=self.images,
            rows=self.images,
            steps=self.steps,
            search=lambda chunk, course: self._search(
                generator, target, pool, (low, high), chunk, ClassDraws(seed, "mirror", chunk, view.device), course
            ),
        )

    def _search(
        self,
        generator: Generator,
        target: WhiteBox,
        pool: Pool,
        box: tuple[Tensor, Tensor],
        classes: Tensor,
        draws: ClassDraws,
        course: Course,
    ) -> tuple[Tensor, Tensor]:
        labels = classes.repeat_interleave(self.images)

        def objective(w: Tensor, mirrored: Tensor) -> Tensor:
            pictures = generator.from_style(w)
            return _WEIGHT * cross_entropy(target.scores(torch.where(mirrored, pictures.flip(3), pictures)), labels)

        w = pool.best(classes, self.images)[0].flatten(0, 1).clamp(*box)
        adam = torch.optim.Adam([w], self.learning_rate)
        best, lowest = w.clone(), torch.full((len(classes),), math.inf, device=w.device)
        for step in range(self.steps + 1):
            coin = draws.uniform(1) < _MIRRORED
            mirrored = coin.repeat_interleave(self.images, 0).view(-1, 1, 1, 1)
            value, (gradient,) = value_and_gradient(lambda w, flip=mirrored: objective(w, flip), w)
            mean = value.view(len(classes), -1).mean(1)
            better = mean < lowest
            lowest = torch.where(better, mean, lowest)
            best = torch.where(better.repeat_interleave(self.images)[:, None], w, best)
            if step == self.steps:
                break
            course.step(value, gradient)
            adam.param_groups[0]["lr"] = self.learning_rate * ramped(step / self.steps)
            w.grad = gradient
            adam.step()
            w.clamp_(*box)
        with torch.no_grad():
            return generator.from_style(best), lowest.repeat_interleave(self.images)
