"""Gaussian noise at the cut, or in the dense layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.model import SplitModel
from leakscope.defenses._drawing import blank, refuse_idle
from leakscope.defenses._noisy import with_noisy_layers


@DEFENSES.register("gaussian")
@dataclass(frozen=True)
class Gaussian(Defense):
    """Adds fresh noise to every released feature.

        z̃ = z + σ n,  n ~ N(0, I)

    `sigma` is a standard deviation, in the units of the features; nothing is clipped.

    `layers` "dense", with `in_training` false, is the baseline that Dibbo et al. describe ("Improving robustness to
    model inversion attacks via sparse coding architectures", ECCV 2024): after training, the outputs of all linear
    layers but the last get noise of their own, on both sides of the cut; what is released then is not changed again.
    An attacker who holds the encoder holds its noisy layers. Such a network is not exported.

    Differs from the papers: published code of this name multiplies by a constant, and switches that off at attack
    time (Dibbo et al.), or calls σ a variance (Xia et al., "CEM", 2025). Here it is noise, and it is on whenever
    features leave.
    """

    #: A decoder trained on the defended features, with fresh draws, is the attack made against it.
    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    sigma: float = 0.1
    in_training: bool = True
    at_release: bool = True
    layers: Literal["cut", "dense"] = "cut"

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < float("inf"):
            raise ValueError("sigma is a standard deviation: 0 or more, such as 0.1")
        if self.layers not in ("cut", "dense"):
            raise ValueError(f"layers must be cut or dense, not {self.layers!r}")
        refuse_idle(self.in_training, self.at_release)
        if self.layers == "dense" and self.in_training:
            raise ValueError("noise in dense layers is added after training; set in_training to false")

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        if self.layers == "cut" or self.sigma == 0:
            return split
        return with_noisy_layers(split, example, self.sigma)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        if self.sigma == 0 or self.layers == "dense" or not (self.in_training if training else self.at_release):
            return z
        return z + self.sigma * blank(z, rng).normal_(generator=rng).to(z.device)
