"""LOMMA on GMI: a better identity term in the same search."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.attacks._latent_descent import Lookahead
from leakscope.attacks._lomma import Lomma
from leakscope.core.attack import ATTACKS


@ATTACKS.register("lomma-gmi", revision=2)
@dataclass(frozen=True)
class LommaGmi(Lomma):
    """GMI with the logit instead of the cross-entropy, a pull on the features, and students beside the target.

    min_z implausibility(G(z)) + 100·L_id(G(z), y), by `gmi`'s descent; L_id is in `attacks._lomma`:
    the mean of −logit_y over target and students plus `feature_weight`·mean((f − f_reg)²).

    `students=[]` is the paper's "logit" variant, `loss=cross-entropy, feature_weight=0` its "aug" variant.

    Nguyen et al., "Re-thinking model inversion attacks against deep neural networks", 2023.

    Differs from the paper: small students trained from scratch; `feature=mean` as the published code does,
    `feature=sampled` as the text says.
    """

    @property
    def descent(self) -> Lookahead:
        return Lookahead(self.steps, self.learning_rate)
