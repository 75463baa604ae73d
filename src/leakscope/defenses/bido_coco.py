"""BiDO with constrained covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES
from leakscope.defenses._bido import DependencyOptimization
from leakscope.defenses._dependence import centring

_ORDERS: dict[str, int | Literal["fro"]] = {"spectral": 2, "frobenius": "fro"}


def doubly_centred(kernel: Tensor) -> Tensor:
    """H K H."""
    centre = centring(len(kernel), kernel)
    return centre @ kernel @ centre


def constrained_covariance(first: Tensor, second: Tensor, norm: Literal["spectral", "frobenius"]) -> Tensor:
    """√‖K̃ L̃‖ / m of two doubly centred kernels; the gradient is 0 where they are independent."""
    size: Tensor = torch.linalg.matrix_norm(first @ second, _ORDERS[norm])
    return size.clamp_min(1e-30).sqrt() / len(first)


@DEFENSES.register("bido-coco", revision=2)
@dataclass(frozen=True)
class BidoCoco(DependencyOptimization):
    """Makes hidden layers independent of the picture and dependent on the label, measured by constrained covariance.

        L = Σ_l λx · d(X, Z_l) − λy · d(Z_l, Y),   d(A, B) = √‖K̃_A K̃_B‖ / m,  K̃ = HKH

    with kernels, weights and layers as in `bido-hsic`. ‖·‖ is the Frobenius norm, to which the published weights
    belong. `norm` "spectral" takes the largest singular value, as constrained covariance is defined: the largest
    covariance of two functions of norm 1 (Gretton et al., "Kernel methods for measuring independence", 2005); it
    is never above the Frobenius norm, and needs weights of its own.

    Peng et al., "Bilateral dependency optimization: defending against model-inversion attacks", KDD 2022.
    VGG16 (5, 50), ResNet-34 (0.05, 2.5).

    Differs from the paper: its training script does not pass the measure on, so that "COCO" trains HSIC there.
    Double precision.
    """

    input_weight: float = 5.0
    label_weight: float = 50.0
    norm: Literal["spectral", "frobenius"] = "frobenius"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in _ORDERS:
            raise ValueError(f"unknown norm {self.norm!r}; norm must be one of {', '.join(_ORDERS)}")

    def prepared(self, kernel: Tensor) -> Tensor:
        return doubly_centred(kernel)

    def dependence(self, first: Tensor, second: Tensor) -> Tensor:
        return constrained_covariance(first, second, self.norm)
