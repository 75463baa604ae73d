"""Generated pictures that mislead an attacker about a class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.model import SplitModel
from leakscope.defenses._deception import Deceiver, generated_loss, tuning
from leakscope.defenses._gan import refuse_gan, trained_generator
from leakscope.defenses._weight import refuse_weight

#: Pictures the inner attacker finds in an epoch.
_FOUND = 64


@DEFENSES.register("gong")
@dataclass(frozen=True)
class Gong(Defense):
    """Tunes a trained network on two kinds of generated pictures, so that a class is rebuilt as something else.

        L = λ · ( mean −(1 − p_y)^γ log p_y  over decoys G(ε, a + b over 2), a, b ≠ y
                + mean p_y^γ KL(uniform ‖ p)  over inversions G(ε*, y), ε* = argmin CE(f(G(ε, y)), y) )

    from the share `start` of training on, with λ the `weight` and G a conditional GAN of the private pictures.
    Decoys put misleading features under a protected label; inversions, found afresh each epoch by
    `inversion_steps` of gradient descent, lose the network's confidence. The focal factors (γ is `gamma`)
    turn the tuning to pictures that are not yet where they should be.

    After Gong et al., "A GAN-based defense framework against model inversion attacks", IEEE TIFS 2023, of which
    the abstract is what we could read: fake samples of a GAN, an adjusted loss for inverted samples,
    misleading features under the protected label. `gong++` adds its continual learning.

    Differs from the paper: in all the abstract does not say. The forms of both losses, the focal factors and
    decoys from between two other private classes are ours; the paper takes public pictures, which a defence
    here is not given. The version of Dibbo et al., "Sparse coding architecture", 2024, adds a constant to the
    loss and so trains nothing.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 0.5
    gamma: float = 2.0
    start: float = 0.5
    inversion_steps: int = 10
    gan_steps: int = 800
    gan_width: int = 16

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_gan(self.gan_steps, self.gan_width)
        if not 0 <= self.gamma < float("inf"):
            raise ValueError("gamma must be 0 (no focus) or more, such as 2")
        if not 0 <= self.start < 1:
            raise ValueError("start must be in [0, 1): the part of training before tuning")
        if self.inversion_steps < 1:
            raise ValueError("inversion_steps must be at least 1")

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight == 0:
            return nn.Module()
        device = next(split.parameters()).device
        generator = trained_generator(data, self.gan_steps, self.gan_width, rng, device)
        return Deceiver(generator, _FOUND, data.shape)

    def optimised(self, aux: nn.Module) -> Iterable[nn.Parameter]:
        return ()  # the generator is finished

    def penalty(self, step: Step) -> Tensor | None:
        if not isinstance(step.aux, Deceiver) or not tuning(step, self.start):
            return None
        return self.weight * generated_loss(step, step.aux, self.gamma, self.inversion_steps)
