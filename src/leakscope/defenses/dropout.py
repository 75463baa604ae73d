"""Features dropped at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES, Defense
from leakscope.defenses._drawing import blank, refuse_idle


@DEFENSES.register("dropout")
@dataclass(frozen=True)
class Dropout(Defense):
    """Sets each released feature to zero with probability p, afresh every time.

        z̃ = m ⊙ z,  m_i ~ Bernoulli(1 − p);   with `rescale`, z̃ = m ⊙ z / (1 − p)

    Unlike `nn.Dropout` it does not rescale, and it is on when the network is deployed.

    The `dropoutp` baseline of Xia et al., "CEM", 2025.

    Differs from the paper: there the features under attack were never dropped.
    """

    #: A decoder trained on the defended features, with fresh draws, is the attack made against it.
    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    p: float = 0.5
    rescale: bool = False
    in_training: bool = True
    at_release: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError("p is a probability: 0 to 1")
        if self.rescale and self.p == 1:
            raise ValueError("p=1 keeps nothing to rescale; lower p or drop rescale")
        refuse_idle(self.in_training, self.at_release)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        if self.p == 0 or not (self.in_training if training else self.at_release):
            return z
        # rand is in [0, 1), so p = 1 drops everything and the comparison needs no special case.
        dropped = blank(z, rng).uniform_(generator=rng).to(z.device) < self.p
        kept = z.masked_fill(dropped, 0)
        return kept / (1 - self.p) if self.rescale else kept
