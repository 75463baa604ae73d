"""Features statistically apart from pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.defenses._weight import refuse_weight

#: The published floors; they keep the square roots differentiable at 0.
_FLOOR = 1e-7


def _centred(values: Tensor) -> Tensor:
    """Pairwise distances, with the means of rows and columns taken out: n×n."""
    flat = values.flatten(1).float()
    distance = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").clamp_min(_FLOOR**0.5)
    return distance - distance.mean(0, keepdim=True) - distance.mean(1, keepdim=True) + distance.mean()


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Near 0 for independent samples, 1 when one is a similarity transform of the other."""
    a, b = _centred(x), _centred(z)

    def covariance(first: Tensor, second: Tensor) -> Tensor:
        return (_FLOOR + (first * second).mean().clamp_min(0)).sqrt()

    scale = (_FLOOR + covariance(a, a) * covariance(b, b)).sqrt()
    return covariance(a, b) / (scale + _FLOOR)


@DEFENSES.register("nopeek")
@dataclass(frozen=True)
class NoPeek(Defense):
    """Lowers the distance correlation of pictures and their features.

        L = λ · dCor(x, z),  dCor² = ⟨A, B⟩ / √(⟨A, A⟩⟨B, B⟩)

    with A and B the double-centred matrices of pairwise distances in the batch, and λ the `weight`.

    Vepakomma et al., "NoPeek: information leakage reduction to share activations in distributed deep
    learning", 2020; floors as in the code of Xia et al., "CEM", 2025.

    Differs from the paper: that code weighs every set but CIFAR-10 by a hidden 0.1; here `weight` is the
    weight. Pictures are in [0, 1] rather than normalised by channel.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 1.0

    def __post_init__(self) -> None:
        refuse_weight(self.weight)

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0:
            return None
        return self.weight * distance_correlation(step.x, step.features)
