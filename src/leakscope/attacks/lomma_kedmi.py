"""LOMMA on KEDMI: a better identity term in the same search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leakscope.attacks._class_search import ClassAttack, classes_of, rebuild
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._latent_descent import GaussianDescent
from leakscope.attacks._lomma import FeatureTarget, Loss, check, identity_term, prepare
from leakscope.core.attack import ATTACKS, Observed, Prepared, Reconstruction
from leakscope.core.prior import PRIORS, Prior
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View


@ATTACKS.register("lomma-kedmi")
@dataclass(frozen=True)
class LommaKedmi(ClassAttack):
    """KEDMI with the logit instead of the cross-entropy, a pull on the features, and students beside the target.

    min_{μ,σ} E_z[implausibility(G(z)) + 100·L_id(G(z), y)], by `kedmi`'s descent; L_id is in `_lomma`:
    the mean of −logit_y over target and students plus `feature_weight`·mean((f − f_reg)²).

    `students=[]` is the paper's "logit" variant, `loss=cross-entropy, feature_weight=0` its "aug" variant.

    Nguyen et al., "Re-thinking model inversion attacks against deep neural networks", 2023.

    Differs from the paper: small students trained from scratch; `feature=mean` as the published code does,
    `feature=sampled` as the text says.
    """

    prior: Prior = nested(PRIORS, "kedmi-gan")
    images: int = 5
    steps: int = 2400
    learning_rate: float = 0.02
    log_variance: float = 1.0  # at the start
    loss: Loss = "logit"
    students: tuple[int, ...] = (16, 24, 32)  # widths
    epochs: int = 20  # of distillation
    feature_weight: float = 1.0
    feature: FeatureTarget = "mean"

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.HEAD})
    white_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or self.images < 1 or self.learning_rate <= 0:
            raise ValueError("steps must be 0 or more, images 1 or more and learning_rate positive")
        check(self.students, self.epochs, self.feature_weight)

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        return prepare(view, self.students, self.epochs, rng)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        term = identity_term(
            view, prepared, rng, loss=self.loss, students=self.students,
            feature_weight=self.feature_weight, feature=self.feature,
        )  # fmt: skip
        seed, generator = seed_from(rng), view.prior(self.prior)
        descent = GaussianDescent(self.steps, self.learning_rate, self.log_variance)
        return rebuild(
            self.kind_name,
            classes_of(seen, view, self.kind_name),
            per_class=self.images,
            rows=1,
            steps=self.steps,
            search=lambda chunk, course: descent(
                generator, term, chunk, self.images, ClassDraws(seed, "latents", chunk, view.device), course
            ),
        )
