"""One sparse layer in front of an ordinary network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakscope.core.defense import DEFENSES
from leakscope.defenses.sca import Sca


@DEFENSES.register("sparse-standard")
@dataclass(frozen=True)
class SparseStandard(Sca):
    """Exchanges the first convolution only: a sparse code of the picture, then layers as ever.

        z = f(code(x)),   code(x) = argmin over R ≥ 0 of ½‖x − D∗R‖² + λΣR,   f as it was

    The paper's control for `sca`: is it sparsity at the input that protects, or its alternation with
    dense layers? Fields and layer as there; with one layer, fixed, nothing is left to update.

    Teti et al., "LCANets", 2022, as in Dibbo et al., ECCV 2024; spec/sca.md §2.
    """

    usual: ClassVar[int] = 1
