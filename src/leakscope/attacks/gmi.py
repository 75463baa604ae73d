"""Generative model inversion: the plausible picture that the target takes for the class."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.attacks._latent_descent import LatentAttack, Lookahead
from leakscope.core.attack import ATTACKS
from leakscope.core.prior import PRIORS, Prior
from leakscope.core.spec import nested


@ATTACKS.register("gmi")
@dataclass(frozen=True)
class Gmi(LatentAttack):
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

    def __post_init__(self) -> None:
        if self.steps < 0 or self.images < 1:
            raise ValueError("steps must be 0 or more and images 1 or more")
        if self.learning_rate <= 0 or self.bound <= 0:
            raise ValueError("learning_rate and bound must be positive")
        if self.weight < 0 or not 0 <= self.momentum < 1:
            raise ValueError("weight must be 0 or more and momentum in [0, 1)")

    @property
    def descent(self) -> Lookahead:
        return Lookahead(self.steps, self.learning_rate, self.weight, self.bound, self.momentum)
