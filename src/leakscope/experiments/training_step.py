"""One step of training with a defence, for our loop and for those of others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel


@dataclass(frozen=True)
class Moment:
    """Where training stands."""

    epoch: int  # from 0
    epochs: int
    learning_rate: float


@dataclass(frozen=True)
class Losses:
    """What one batch costs."""

    step: Step
    penalty: Tensor | None
    total: Tensor  # of task and penalty; the task's own tensor where there is no penalty

    def require_finite(self, where: str) -> None:
        if not torch.isfinite(self.total):
            raise UsageError(
                f"training diverged: loss {self.total.item()} in {where}; "
                "lower training.learning_rate or the defence's weight"
            )


def set_up(split: SplitModel, data: ImageSet, seed: int) -> nn.Module:
    """What the defence carries through training, drawn from the seed's own generator."""
    with seeds.ambient(seed, "target", "setup"):
        return split.defense.setup(split, data, seeds.generator(seed, "target", "setup"))


def stepped(split: SplitModel, aux: nn.Module) -> list[nn.Parameter]:
    """Freeze what private data may not touch; gives the parameters that the optimiser steps."""
    allowed = split.defense.trainable(split)
    for name, parameter in split.named_parameters():
        parameter.requires_grad_(name in allowed)
    return [p for p in split.parameters() if p.requires_grad] + list(split.defense.optimised(aux))


def release_rng(seed: int, epoch: int, device: torch.device) -> torch.Generator:
    """The generator of everything random that a defence does in an epoch."""
    return seeds.generator(seed, "target", "release", epoch, device=device)


def losses(split: SplitModel, aux: nn.Module, x: Tensor, y: Tensor, moment: Moment, rng: torch.Generator) -> Losses:
    """Cross-entropy and the defence's penalty on one batch, each network called once."""
    out = split.run(x, rng)
    task = F.cross_entropy(out.scores, y)
    step = Step(
        x, y, out.features, out.released, out.scores, task, split, aux,
        moment.epoch, moment.epochs, moment.learning_rate, rng,
    )  # fmt: skip
    penalty = split.defense.penalty(step)
    return Losses(step, penalty, task if penalty is None else task + penalty)
