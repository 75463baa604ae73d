"""Only the largest features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES, Defense
from leakscope.defenses._drawing import refuse_idle


@DEFENSES.register("topk")
@dataclass(frozen=True)
class TopK(Defense):
    """Keeps the share `keep` of largest-magnitude features of each sample, and sets the others to zero.

        z̃_i = z_i  if |z_i| is among the k largest of its sample, else 0;   k = ⌈keep · D⌉

    The `topkpruner` baseline of Xia et al., "CEM", 2025.

    Differs from the paper: its code prunes the smallest *signed* values (`signed=True` here) of the whole
    batch tensor, so that what one person sends depends on who else is in the batch; here samples
    never mix. There, too, the features under attack were never pruned.
    """

    #: A decoder trained on the defended features, with fresh draws, is the attack made against it.
    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    keep: float = 0.1
    signed: bool = False
    in_training: bool = True
    at_release: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError("keep is the share of features that stays: above 0 and at most 1")
        refuse_idle(self.in_training, self.at_release)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        if self.keep == 1 or not (self.in_training if training else self.at_release):
            return z
        flat = z.flatten(1)  # N×D
        size = flat.shape[1]
        # In floating point 0.3·10 is a little above 3: a share is not known to the last bit.
        count = min(size, max(1, int(-(-(self.keep * size - 1e-6) // 1))))
        kept = (flat if self.signed else flat.abs()).topk(count, dim=1).indices
        mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, kept, True)
        return flat.masked_fill(~mask, 0).view_as(z)
