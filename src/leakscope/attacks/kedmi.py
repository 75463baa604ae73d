"""Knowledge-enriched distributional inversion: a Gaussian of latents for every class."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.attacks._latent_descent import GaussianDescent, LatentAttack
from leakscope.core.attack import ATTACKS
from leakscope.core.prior import PRIORS, Prior
from leakscope.core.spec import nested


@ATTACKS.register("kedmi")
@dataclass(frozen=True)
class Kedmi(LatentAttack):
    """Fits one Gaussian of latents per class, in a GAN whose critic was taught the target's soft labels.

    min_{μ,σ} E_ε[ implausibility(G(z)) + `weight`·CE(T(G(z)), y) ],  z = clip(μ + σ⊙ε), ε ~ N(0, I),

    by Adam with one fresh ε a step. With the inversion-specific GAN the first term is
    softplus(−lse D(G(z))). The pictures are `images` draws of the fitted Gaussian.

    Chen et al., "Knowledge-enriched distributional model inversion attacks", 2021; 3000 steps, z clipped
    and log σ² from 0 after Ho et al., "TL-DMI", 2024 (log σ² from 1 in LOMMA's code, 5000 steps and no
    clipping in BiDO's).
    """

    prior: Prior = nested(PRIORS, "kedmi-gan")
    images: int = 5
    steps: int = 3000
    learning_rate: float = 0.02
    log_variance: float = 0.0  # at the start
    weight: float = 100.0
    bound: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 0 or self.images < 1:
            raise ValueError("steps must be 0 or more and images 1 or more")
        if self.learning_rate <= 0 or self.bound <= 0 or self.weight < 0:
            raise ValueError("learning_rate and bound must be positive and weight 0 or more")

    @property
    def descent(self) -> GaussianDescent:
        return GaussianDescent(self.steps, self.learning_rate, self.weight, self.bound, self.log_variance)
