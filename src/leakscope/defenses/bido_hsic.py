"""BiDO with the Hilbert-Schmidt independence criterion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES
from leakscope.defenses._bido import DependencyOptimization
from leakscope.defenses._dependence import centring

#: Tikhonov term of the published normalisation, times the size of the batch.
_RIDGE = 1e-5


def smoother(kernel: Tensor) -> Tensor:
    """R = A (A + 1e-5·m·I)⁻¹ with A = K H."""
    size = len(kernel)
    centred = kernel @ centring(size, kernel)
    ridge = _RIDGE * size * torch.eye(size, dtype=kernel.dtype, device=kernel.device)
    smoothed: Tensor = torch.linalg.solve(centred + ridge, centred)  # A commutes with (A + c·I)⁻¹
    return smoothed


def normalised_hsic(first: Tensor, second: Tensor) -> Tensor:
    """tr(R₁ R₂) of two smoothers: 0 for independent samples, up to m − 1."""
    return (first * second.T).sum()


@DEFENSES.register("bido-hsic")
@dataclass(frozen=True)
class BidoHsic(DependencyOptimization):
    """Makes hidden layers independent of the picture and dependent on the label, measured by normalised HSIC.

        L = Σ_l λx · d(X, Z_l) − λy · d(Z_l, Y)
        d(A, B) = tr(R_A R_B),  R = KH (KH + 1e-5·m·I)⁻¹,  K Gaussian: exp(−‖·‖² / (2σ²·dim)), linear for labels

    over a batch of m, with λx the `input_weight` and λy the `label_weight`. `layers` are the hidden layers; when
    none is named, one for each size of the features (the poolings of VGG). Layers that a stacked defence
    freezes are left out.

    Peng et al., "Bilateral dependency optimization: defending against model-inversion attacks", KDD 2022.
    VGG16 (0.05, 0.5), ResNet-34 (0.1, 2); search λx in 0.01 to 0.2 and λy/λx in 5 to 50. TL-DMI + BiDO (0.05, 0.4).

    Differs from the paper: in double precision, in which the inverse has enough digits. Pictures are in [0, 1]
    as released, before the network's normalisation.
    """

    input_weight: float = 0.05
    label_weight: float = 0.5

    def prepared(self, kernel: Tensor) -> Tensor:
        return smoother(kernel)

    def dependence(self, first: Tensor, second: Tensor) -> Tensor:
        return normalised_hsic(first, second)
