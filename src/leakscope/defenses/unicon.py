"""Features of one class brought together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.defenses._classes import by_class
from leakscope.defenses._weight import refuse_weight


def unicon(features: Tensor, y: Tensor) -> Tensor:
    """The mean over classes of the mean squared distance of their pairs."""
    z = F.normalize(features.flatten(1).float(), dim=1)  # N×D
    classes = by_class(y)
    deviation = (z - classes.mean(z)[classes.index]).square().sum(1)  # N
    # Σ_ij ‖z_i − z_j‖² = 2n Σ_i ‖z_i − μ‖², so the n(n−1) ordered pairs cost one pass over n samples.
    # A class of one has no pair: its deviation is 0, and so is its share.
    return (2 * classes.sum(deviation) / (classes.count - 1).clamp_min(1)).mean()


@DEFENSES.register("unicon")
@dataclass(frozen=True)
class UniCon(Defense):
    """Pulls features of the same class together.

        L = λ · 1/C · Σ_c 1/(|c|(|c|−1)) · Σ_{i,j∈c} ‖z_i − z_j‖²

    over unit-norm features and the C classes in the batch; λ is `weight`.

    The ablation (appendix D.1) of Li et al., "MixCon: adjusting the separability of data representations for
    harder data recovery", 2020.

    Differs from the paper: it leaves open whether features are scaled to unit norm, as in MixCon; here
    they are. A class with one sample in the batch has no pair and adds 0.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 0.1

    def __post_init__(self) -> None:
        refuse_weight(self.weight)

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0:
            return None
        return self.weight * unicon(step.features, step.y)
