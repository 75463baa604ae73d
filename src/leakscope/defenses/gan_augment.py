"""Generated pictures beside the private ones in every batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.model import SplitModel
from leakscope.defenses._gan import Generator, normal, onehot, refuse_gan, trained_generator
from leakscope.defenses._weight import refuse_weight


@DEFENSES.register("gan-augment")
@dataclass(frozen=True)
class GanAugment(Defense):
    """Trains on as many generated pictures as private ones, so that a class looks like more than its private pictures.

        L = λ · CE(f(G(ε, y)), y),  ε ~ N(0, I),  y the labels of the batch

    with G a conditional GAN trained on the private pictures before the target is, and λ the `weight`. It takes
    `gan_steps` steps of 32 pictures: under a minute on one core for 28×28 and 32×32.

    The "GAN" baseline of Dibbo et al., "Sparse coding architecture", 2024.

    Differs from the paper: there the term enters the loss as a constant without gradient, all pictures of a batch
    have the label of its first, and the discriminator is trained by a multi-class loss over the batch. Here it is a
    convolutional GAN with binary cross-entropy, and its pictures are learned from.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 1.0
    gan_steps: int = 800
    gan_width: int = 16

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_gan(self.gan_steps, self.gan_width)

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight == 0:
            return nn.Module()
        device = next(split.parameters()).device
        return trained_generator(data, self.gan_steps, self.gan_width, rng, device)

    def optimised(self, aux: nn.Module) -> Iterable[nn.Parameter]:
        return ()  # the generator is finished

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0:
            return None
        generator = step.aux
        assert isinstance(generator, Generator)
        generator.eval()  # the loop puts what a defence carries in training mode
        with torch.no_grad():
            pictures = generator(normal(len(step.y), step.rng, step.x.device), onehot(step.y, step.scores.shape[1]))
        return self.weight * F.cross_entropy(step.split.run(pictures.float(), step.rng).scores, step.y)
