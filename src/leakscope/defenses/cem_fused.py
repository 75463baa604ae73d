"""Conditional entropy by gates and slots together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import DEFENSES
from leakscope.core.model import SplitModel
from leakscope.defenses._classes import Groups
from leakscope.defenses._gates import GatedPool, effective_share, weighted_variance
from leakscope.defenses._slots import SlotAttention, SlotSettings, rows, slot_attention, slot_moments
from leakscope.defenses._surrogate import AttentionForm, Watched, class_average, excess, gradient_times

Coupling = Literal["parallel", "shortcut"]
Hinge = Callable[[Tensor], Tensor]


def _parallel(pooled: Tensor, slotted: Tensor, shares: Tensor, mix: Tensor, hinge: Hinge) -> Tensor:
    """Both penalties, in a learned proportion: C."""
    return (1 - mix) * hinge(pooled).mean(1) + mix * (shares * hinge(slotted).mean(2)).sum(1)


def _shortcut(pooled: Tensor, slotted: Tensor, shares: Tensor, mix: Tensor, hinge: Hinge) -> Tensor:
    """The variance of the slots as a residual on that of the gates: C."""
    return hinge(pooled + mix * (shares[..., None] * slotted).sum(1)).mean(1)


_COUPLINGS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Hinge], Tensor]] = {
    "parallel": _parallel,
    "shortcut": _shortcut,
}


class Fusion(Watched):
    """Gated pooling, slots, their proportion, and the watch on them."""

    def __init__(self, width: int, attention: SlotAttention) -> None:
        super().__init__()
        self.pool = GatedPool(width, affine=False)
        self.attention = attention
        self.mix = nn.Parameter(torch.zeros(()))


@DEFENSES.register("cem-fused")
@dataclass(frozen=True)
class CEMFused(AttentionForm):
    """Shrinks the variance of each class as seen by gated pooling and by slots at once.

        parallel:  L_c = (1 − a) · mean_j h(v_cj) + a · Σ_k w_ck · mean_j h(u_ckj)
        shortcut:  L_c = mean_j h(v_cj + a · Σ_k w_ck u_ckj),      h(v) = max(0, log v − log ρσ²)

    with v the variance under the gates of `cem-gated`, u and w variance and weight of the slots of
    `cem-slot`, and a = sigmoid of a learned number, which starts at ½. L is the mean of L_c over classes with
    at least 3 samples, weighted by size, times λ f(η) and `scale`, from epoch `warmup` on.

    The next steps of the interim report "Investigation of defence mechanisms against model inversion
    attacks", 2025, which names both couplings and gives no formula.

    Differs from the paper: nothing learned here can lower the penalty. Gates, slots and a see detached
    features and ascend; variances are those of the raw features, in the units of the noise.
    """

    coupling: Coupling = "parallel"
    settings: SlotSettings = field(default_factory=SlotSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coupling not in _COUPLINGS:
            raise ValueError(f"unknown coupling {self.coupling!r}; coupling must be one of {', '.join(_COUPLINGS)}")

    def learned(self, width: int, rng: torch.Generator) -> Fusion:
        attention = slot_attention(width, self.settings, rng, published=False)
        with seeds.ambient(int(torch.randint(2**62, (), generator=rng)), "fusion"):
            return Fusion(width, attention)

    def surrogate(self, learned: Fusion, rng: torch.Generator, z: Tensor, classes: Groups) -> tuple[Tensor, Tensor]:
        pool, attention = learned.pool, learned.attention
        weights = gradient_times(pool.weights(pool.norm(z.detach()), classes), -1)
        pooled = weighted_variance(z, weights, classes)  # C×D
        x = attention.tokens(z.detach(), classes)
        responsibilities = gradient_times(attention.responsibilities(x, attention(x, rng)), -1)
        mass, _, slotted = slot_moments(rows(z, classes).values, responsibilities)  # C×S×D
        mix = gradient_times(learned.mix.sigmoid(), -1)
        losses = _COUPLINGS[self.coupling](
            pooled, slotted, attention.shares(mass, classes), mix, lambda v: excess(v, self.sigma, self.rho)
        )
        return self.scale * class_average(classes, losses, least=3), effective_share(weights, classes)

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        noted = super().notes(split, aux)
        return noted | {"slot_share": aux.mix.detach().sigmoid().item()} if isinstance(aux, Fusion) else noted
