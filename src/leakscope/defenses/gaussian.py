"""Gaussian noise at the cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES, Defense
from leakscope.defenses._drawing import blank, refuse_idle


@DEFENSES.register("gaussian")
@dataclass(frozen=True)
class Gaussian(Defense):
    """Adds fresh noise to every released feature.

        z̃ = z + σ n,  n ~ N(0, I)

    `sigma` is a standard deviation, in the units of the features; nothing is clipped.

    Differs from the paper: published baselines of this name multiply by a constant, or switch the noise
    off at attack time (Dibbo et al., "Sparse coding architecture", 2024), or call σ a variance (Xia
    et al., "CEM", 2025). Here it is noise, and it is on whenever features leave.
    """

    #: A decoder trained on the defended features, with fresh draws, is the attack made against it.
    adaptive: ClassVar[tuple[str, ...]] = ("decoder",)

    sigma: float = 0.1
    in_training: bool = True
    at_release: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < float("inf"):
            raise ValueError("sigma is a standard deviation: 0 or more, such as 0.1")
        refuse_idle(self.in_training, self.at_release)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        if self.sigma == 0 or not (self.in_training if training else self.at_release):
            return z
        return z + self.sigma * blank(z, rng).normal_(generator=rng).to(z.device)
