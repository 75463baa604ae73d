"""Plug & Play: a style generator that knows nothing of the target, and a selection that asks twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._class_search import ClassAttack, Course, classes_of, rebuild, value_and_gradient
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._identity_losses import poincare
from leakscope.attacks._selection import Pool, draw_pool, robust_confidence, top_of_each_class
from leakscope.attacks._views import NUMBERS, Views
from leakscope.attacks._white_box import WhiteBox
from leakscope.core.attack import ATTACKS, Observed, Prepared, Reconstruction
from leakscope.core.prior import PRIORS, Generator, Prior
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View

_BETAS = (0.1, 0.1)
_FINAL_VIEWS = Views(area=(0.5, 0.9), ratio=(0.8, 1.2), mirrored=0.5)


@ATTACKS.register("ppa")
@dataclass(frozen=True)
class Ppa(ClassAttack):
    """Optimises the likeliest of many random styles, and keeps pictures that survive random crops and shifts.

    1. Of `candidates` random w (truncated by ψ), each class keeps the `starts` with the highest softmax of T,
       averaged over the picture and its mirror image.
    2. min_w d_Poincaré(T(view(G(w))), y) by Adam with betas (0.1, 0.1); `view` is a fresh random crop of
       at least `crop` of the area. No prior term, no clipping.
    3. The `images` with the highest mean softmax over `views` random crops and mirror images are kept.

    Struppek et al., "Plug & Play Attacks", 2022; 5000 candidates and 70 steps on CelebA.

    Differs from the paper: crop and resizing of a full StyleGAN picture belong to the prior; truncation acts
    on all layers.
    """

    prior: Prior = nested(PRIORS, "style")
    images: int = 50
    candidates: int = 2000
    starts: int = 200
    steps: int = 50
    learning_rate: float = 0.005
    truncation: float = 0.5
    crop: float = 0.9
    views: int = 100

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.HEAD})
    white_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.images <= self.starts <= self.candidates:
            raise ValueError("1 ≤ images ≤ starts ≤ candidates: each stage keeps some of the one before")
        if self.steps < 0 or self.views < 0 or self.learning_rate <= 0:
            raise ValueError("steps and views must be 0 or more and learning_rate positive")
        if not 0 < self.crop <= 1:
            raise ValueError("crop is the smallest share of the area that a view shows: above 0, at most 1")

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        target, seed = WhiteBox(view, rng), seed_from(rng)
        generator = view.prior(self.prior)
        classes = classes_of(seen, view, self.kind_name)

        def judge(images: Tensor) -> Tensor:
            return (target.scores(images).softmax(1) + target.scores(images.flip(3)).softmax(1)) / 2

        pool = draw_pool(generator, self.candidates, self.truncation, seed, judge)
        return rebuild(
            self.kind_name,
            classes,
            per_class=self.images,
            rows=self.starts,
            steps=self.steps,
            search=lambda chunk, course: self._search(
                generator, target, pool, chunk, ClassDraws(seed, "views", chunk, view.device), course
            ),
        )

    def _search(
        self, generator: Generator, target: WhiteBox, pool: Pool, classes: Tensor, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        labels = classes.repeat_interleave(self.starts)
        crops = Views(area=(self.crop, 1.0))
        w = pool.best(classes, self.starts)[0].flatten(0, 1).clone()
        adam = torch.optim.Adam([w], self.learning_rate, betas=_BETAS)

        def objective(w: Tensor, uniform: Tensor) -> Tensor:
            return poincare(target.scores(crops(generator.from_style(w), uniform)), labels)

        for _ in range(self.steps):
            uniform = draws.uniform(self.starts, NUMBERS).flatten(0, 1)
            value, (gradient,) = value_and_gradient(lambda w, uniform=uniform: objective(w, uniform), w)
            course.step(value, gradient)
            w.grad = gradient
            adam.step()
        with torch.no_grad():
            pictures = generator.from_style(w)
            value = poincare(target.scores(pictures), labels)
        confidence = robust_confidence(pictures, classes, target.scores, _FINAL_VIEWS, self.views, draws)
        kept, rows = top_of_each_class(pictures, confidence, len(classes), self.images)
        return kept, value[rows]
