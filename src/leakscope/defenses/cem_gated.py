"""Conditional entropy by gated attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.model import SplitModel
from leakscope.defenses._classes import Groups
from leakscope.defenses._encoding import flat_features
from leakscope.defenses._gates import GatedPool, effective_share, weighted_variance
from leakscope.defenses._schedules import SCHEDULES, Schedule
from leakscope.defenses._surrogate import (
    DIRECTIONS,
    Form,
    Watch,
    class_average,
    excess,
    gradient_times,
    optimised,
    refuse_form,
    refuse_settings,
    watched_penalty,
)


class Gates(nn.Module):
    """Gated pooling and the watch on it."""

    def __init__(self, width: int, *, affine: bool) -> None:
        super().__init__()
        self.pool = GatedPool(width, affine=affine)
        self.watch = Watch()


@DEFENSES.register("cem-gated")
@dataclass(frozen=True)
class CEMGated(Defense):
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

    adaptive: ClassVar[tuple[str, ...]] = ("decoder",)

    weight: float = 16.0
    sigma: float = 0.025
    rho: float = 0.125
    scale: float = 0.1
    warmup: int = 5
    form: Form = "adversarial"
    schedule: Schedule = "inverse-rate"

    def __post_init__(self) -> None:
        refuse_settings(self.weight, self.warmup, self.schedule, sigma=self.sigma, rho=self.rho, scale=self.scale)
        refuse_form(self.form)

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight == 0:
            return nn.Module()
        width = flat_features(split, data.images[:1]).shape[1]
        with seeds.ambient(int(torch.randint(2**62, (), generator=rng)), "gates"):
            return Gates(width, affine=self.form == "published")

    def optimised(self, aux: nn.Module) -> Iterable[nn.Parameter]:
        return optimised(self.form, aux)

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0 or step.epoch < self.warmup:
            return None
        gates = step.aux
        assert isinstance(gates, Gates)
        factor = self.weight * SCHEDULES[self.schedule](step.learning_rate)
        return watched_penalty(step, factor, gates.watch, partial(self.surrogate, gates.pool))

    def surrogate(self, pool: GatedPool, z: Tensor, classes: Groups) -> tuple[Tensor, Tensor]:
        """The loss before λ, and the effective share of each class's samples: N×D to a number and C."""
        if self.form == "published":
            x = pool.norm(z)
            weights = pool.weights(x, classes)
        else:
            x = z
            weights = gradient_times(pool.weights(pool.norm(z.detach()), classes), DIRECTIONS[self.form])
        losses = excess(weighted_variance(x, weights, classes), self.sigma, self.rho).mean(1)
        return self.scale * class_average(classes, losses, least=2), effective_share(weights, classes)

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        return aux.watch.notes() if isinstance(aux, Gates) else {}
