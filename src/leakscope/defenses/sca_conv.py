"""The sparse-coding architecture with a convolutional tail."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leakscope.core.defense import DEFENSES
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._sparse_layers import convolutions
from leakscope.defenses.sca import Sca


@DEFENSES.register("sca-conv", revision=2)
@dataclass(frozen=True)
class ScaConv(Sca):
    """Two sparse layers, then convolutions: what the published code runs on colour pictures.

        z = conv(… BN(code₂(BN(code₁(x)))) …),   code_l(x) = argmin over R ≥ 0 of ½‖x − D_l∗R‖² + λΣR

    As `sca`, and refused where no convolution is left behind the sparse layers. There the later layers
    mix and pool the code over space, which linear layers on rows do not; keep apart what hides.

    Dibbo et al., "Improving robustness to model inversion attacks via sparse coding architectures", ECCV 2024, as
    published in code; spec/sca.md §2. Network: `sca-conv-net`.
    """

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        left = list(convolutions(split, example))
        last = max((left.index(name) for name in self.chosen(split, example)), default=-1)
        if last + 1 >= len(left):
            raise UsageError("sca-conv needs a convolution behind its sparse layers; on this network take sca")
        return super().rebuild(split, example)
