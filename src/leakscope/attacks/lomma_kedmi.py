"""LOMMA on KEDMI: a better identity term in the same search."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.attacks._latent_descent import GaussianDescent
from leakscope.attacks._lomma import Lomma
from leakscope.core.attack import ATTACKS
from leakscope.core.prior import PRIORS, Prior
from leakscope.core.spec import nested


@ATTACKS.register("lomma-kedmi", revision=2)
@dataclass(frozen=True)
class LommaKedmi(Lomma):
    """KEDMI with the logit instead of the cross-entropy, a pull on the features, and students beside the target.

    min_{μ,σ} E_z[implausibility(G(z)) + 100·L_id(G(z), y)], by `kedmi`'s descent; L_id is in `attacks._lomma`:
    the mean of −logit_y over target and students plus `feature_weight`·mean((f − f_reg)²).

    `students=[]` is the paper's "logit" variant, `loss=cross-entropy, feature_weight=0` its "aug" variant.

    Nguyen et al., "Re-thinking model inversion attacks against deep neural networks", 2023.

    Differs from the paper: small students trained from scratch; `feature=mean` as the published code does,
    `feature=sampled` as the text says.
    """

    prior: Prior = nested(PRIORS, "kedmi-gan")
    log_variance: float = 1.0  # at the start

    @property
    def descent(self) -> GaussianDescent:
        return GaussianDescent(self.steps, self.learning_rate, log_variance=self.log_variance)
