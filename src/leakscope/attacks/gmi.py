"""Generative model inversion: the plausible picture that the target takes for the class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._class_search import ClassAttack, classes_of, rebuild
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._identity_losses import cross_entropy
from leakscope.attacks._latent_descent import Lookahead
from leakscope.attacks._white_box import WhiteBox
from leakscope.core.attack import ATTACKS, Observed, Prepared, Reconstruction
from leakscope.core.prior import PRIORS, Prior
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View


@ATTACKS.register("gmi")
@dataclass(frozen=True)
class Gmi(ClassAttack):
    """Descends in the latents of a GAN towards the class, held back by the GAN's critic.

    min_z implausibility(G(z)) + `weight`·CE(T(G(z)), y) over z in [−bound, bound], from z ~ N(0, I),

    by momentum with lookahead, clipped at every step. With a WGAN the first term is −D(G(z)). `images`
    independent starts give as many pictures; none is selected.

    Zhang et al., "The Secret Revealer", 2020; 3000 steps after Ho et al., "TL-DMI", 2024 (others 1500 to
    2400).

    Differs from the published code: there the loss is a mean over a batch of 60 identities, so that the
    batch size scales the steps; here every identity takes the steps it takes in a batch of 60.
    """

    prior: Prior = nested(PRIORS, "dcgan")
    images: int = 5
    steps: int = 3000
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight: float = 100.0
    bound: float = 1.0

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.HEAD})
    white_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or self.images < 1:
            raise ValueError("steps must be 0 or more and images 1 or more")
        if self.learning_rate <= 0 or self.bound <= 0:
            raise ValueError("learning_rate and bound must be positive")
        if self.weight < 0 or not 0 <= self.momentum < 1:
            raise ValueError("weight must be 0 or more and momentum in [0, 1)")

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        target, seed = WhiteBox(view, rng), seed_from(rng)
        generator = view.prior(self.prior)
        descent = Lookahead(self.steps, self.learning_rate, self.momentum, self.weight, self.bound)

        def identity(images: Tensor, labels: Tensor, draws: ClassDraws) -> Tensor:
            return cross_entropy(target.scores(images), labels)

        return rebuild(
            self.kind_name,
            classes_of(seen, view, self.kind_name),
            per_class=self.images,
            rows=self.images,
            steps=self.steps,
            search=lambda chunk, course: descent(
                generator, identity, chunk, self.images, ClassDraws(seed, "latents", chunk, view.device), course
            ),
        )
