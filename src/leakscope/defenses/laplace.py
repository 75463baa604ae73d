"""Laplace noise at the cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES, Defense
from leakscope.defenses._drawing import blank, refuse_idle


@DEFENSES.register("laplace")
@dataclass(frozen=True)
class Laplace(Defense):
    """Adds fresh noise of density exp(−|t|/b) / 2b to every released feature; its variance is 2b².

        z̃ = z + b (e₁ − e₂),  e₁, e₂ ~ Exp(1)

    The difference of two exponentials is Laplace exactly, and unlike an inverted distribution
    function it never takes the logarithm of zero.

    Titcombe et al., "Practical defences against model inversion attacks for split neural networks", 2021.

    Differs from the paper: nothing but where `at_release` is false; the published baselines of others
    switch the noise off when attacked.
    """

    #: A decoder trained on the defended features, with fresh draws, is the attack made against it.
    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    scale: float = 0.1  # b
    in_training: bool = True
    at_release: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.scale < float("inf"):
            raise ValueError("scale is Laplace's b: 0 or more, such as 0.1")
        refuse_idle(self.in_training, self.at_release)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        if self.scale == 0 or not (self.in_training if training else self.at_release):
            return z
        noise = blank(z, rng).exponential_(generator=rng) - blank(z, rng).exponential_(generator=rng)
        return z + self.scale * noise.to(z.device)
