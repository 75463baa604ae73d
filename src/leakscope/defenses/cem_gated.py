"""Conditional entropy by gated attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.defense import DEFENSES
from leakscope.defenses._classes import Groups
from leakscope.defenses._gates import GatedPool, effective_share, weighted_variance
from leakscope.defenses._surrogate import DIRECTIONS, DirectedForm, Watched, class_average, excess, gradient_times


class Gates(Watched):
    """Gated pooling and the watch on it."""

    def __init__(self, width: int, *, affine: bool) -> None:
        super().__init__()
        self.pool = GatedPool(width, affine=affine)


@DEFENSES.register("cem-gated")
@dataclass(frozen=True)
class CEMGated(DirectedForm):
    """Shrinks the attention-weighted variance of each class, feature by feature, to the level of the noise.

        L = λ f(η) s · Σ_c (M_c/B) L_c / Σ_c (M_c/B),   L_c = mean_j max(0, log v_cj − log τ),
        v_cj = Σ_m α_m (x_mj − Σ α x_j)²,   α = softmax_{m∈c} wᵀ(tanh(W_V x_m) ⊙ sigmoid(W_U x_m)),   τ = ρσ²

    over classes with M_c ≥ 2 samples in the batch, s being `scale`, from epoch `warmup` on.

    The `form` says whom the gates serve. "published": x is the feature after a learned LayerNorm and the
    gates descend the penalty, which they can do alone, by shrinking the LayerNorm or by looking at one
    sample (notes: penalty against within-class variance, effective sample share). "adversarial": the
    gates see detached, normalised features and *ascend* the penalty, and v is the variance of the raw
    features, in the units of τ, so that only the encoder can lower it. "detached": as that, but the gates
    stay as they were drawn.

    The interim report "Investigation of defence mechanisms against model inversion attacks", 2025, algorithm 1.

    Differs from the paper: the default form, above. Prose there speaks of a variance floor; the formulas,
    followed here, push variance down. All classes are one tensor expression. Features that are not finite
    stop training instead of switching the penalty off.
    """

    def learned(self, width: int, rng: torch.Generator) -> Gates:
        with seeds.ambient(int(torch.randint(2**62, (), generator=rng)), "gates"):
            return Gates(width, affine=self.form == "published")

    def surrogate(self, learned: Gates, rng: torch.Generator, z: Tensor, classes: Groups) -> tuple[Tensor, Tensor]:
        pool = learned.pool
        if self.form == "published":
            x = pool.norm(z)
            weights = pool.weights(x, classes)
        else:
            x = z
            weights = gradient_times(pool.weights(pool.norm(z.detach()), classes), DIRECTIONS[self.form])
        losses = excess(weighted_variance(x, weights, classes), self.sigma, self.rho).mean(1)
        return self.scale * class_average(classes, losses, least=2), effective_share(weights, classes)
