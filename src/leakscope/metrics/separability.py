"""How far apart the features of different pictures are at the cut."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.devices import widened
from leakscope.core.errors import UsageError
from leakscope.core.seeds import generator


@dataclass(frozen=True)
class Separability:
    """Smallest, mean and largest ‖z_i − z_j‖₂ over the pairs i < j of `n` pictures."""

    min: float
    mean: float
    max: float
    n: int


def separability(features: Tensor, *, at_most: int = 512, seed: int = 0, unit_norm: bool = False) -> Separability:
    """Pairwise distances at the cut: MixCon's δ_h (min), Δ_H (max) and the mean of its Figure 3 (Li et al., 2020).

    A small minimum costs accuracy, a large maximum helps inversion. Of more than `at_most` pictures
    a random sample is taken; the minimum of a sample is never below, its maximum never above, that
    of all.

    With `unit_norm` every feature vector is first scaled to length 1: what MixCon's loss acts on, and the only
    measure that a change of scale alone, which hides nothing, cannot move. A vector of zeros stays one.
    """
    if at_most < 2:
        raise ValueError(f"at_most must be 2 or more, not {at_most}")
    if len(features) < 2:
        raise ValueError(f"separability needs two pictures or more, not {len(features)}")
    rows = features.detach().flatten(1).double()  # squares of large features leave single precision
    if len(rows) > at_most:
        rows = rows[torch.randperm(len(rows), generator=generator(seed, "separability"))[:at_most].to(rows.device)]
    if not rows.isfinite().all():
        raise UsageError(
            "released features are NaN or infinite: the target did not train, or sends what no server can use; mend it"
        )
    if unit_norm:
        rows = torch.nn.functional.normalize(rows, dim=1)
    distances = torch.pdist(rows)
    return Separability(float(distances.min()), float(widened(distances).mean()), float(distances.max()), len(rows))
