"""What the attention forms of CEM share: the hinge, who is pushed which way, and a watch on gaming."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Step
from leakscope.core.model import SplitModel
from leakscope.defenses._classes import Groups, by_class
from leakscope.defenses._encoding import flat_features
from leakscope.defenses._schedules import SCHEDULES, Schedule, refuse_schedule
from leakscope.defenses._weight import refuse_not_positive, refuse_weight

Form = Literal["published", "adversarial", "detached"]

#: The factor on the gradient of a surrogate's own weights: down the penalty, up it, or neither.
DIRECTIONS: dict[str, float] = {"published": 1.0, "adversarial": -1.0, "detached": 0.0}


def gradient_times(x: Tensor, factor: float) -> Tensor:
    """x, to the bit, with `factor` on its gradient."""
    return x.detach() if factor == 0 else x.detach() + factor * (x - x.detach())


def excess(variance: Tensor, sigma: float, rho: float) -> Tensor:
    """max(0, log(v + 1e-6) − log τ), τ = max(ρσ², 1e-8) + 1e-6."""
    threshold = variance.new_tensor(max(rho * sigma**2, 1e-8) + 1e-6)
    return ((variance.clamp_min(1e-6) + 1e-6).log() - threshold.log()).clamp_min(0)


def class_average(classes: Groups, losses: Tensor, least: int) -> Tensor:
    """Σ_c (M_c/B) L_c / Σ_c (M_c/B) over classes of at least `least` samples; 0 when there is none."""
    share = classes.count / len(classes.index) * (classes.count >= least)
    return (share * losses).sum() / share.sum().clamp_min(1e-8)


class Watch(nn.Module):
    """First and running values of penalty, spread and effective sample size.

    A penalty that falls while the spread of the features does not, or an effective sample size near 1,
    is a surrogate that games itself.
    """

    first: Tensor
    last: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))
        self.register_buffer("seen", torch.tensor(0))

    @torch.no_grad()
    def log(self, penalty: Tensor, classes: Groups, z: Tensor, samples: Tensor) -> None:
        """`z` are raw features N×D, `samples` the effective share of each class's samples."""
        deviation = (z - classes.mean(z)[classes.index]).square().mean()
        several = classes.count > 1
        share = (samples * several).sum() / several.sum().clamp_min(1)
        now = torch.stack([penalty, deviation, share])
        fresh = self.first[0] == 0  # until the penalty acts: a form may keep silent at first
        self.first.copy_(torch.where(fresh, now, self.first))
        self.last.copy_(torch.where(fresh, now, 0.95 * self.last + 0.05 * now))
        self.seen += 1

    def notes(self) -> dict[str, Any]:
        if not self.seen:
            return {}
        names = ("penalty", "within_class_variance", "effective_sample_share")
        first, last = self.first.tolist(), self.last.tolist()
        return {name: {"first": a, "last": b} for name, a, b in zip(names, first, last, strict=True)}


class Watched(nn.Module):
    """What an attention form learns, and the watch on it."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch()


@dataclass(frozen=True)
class AttentionForm(Defense, ABC):
    """Settings and course that the attention forms of CEM share; a form says what it learns and its loss."""

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 16.0
    sigma: float = 0.025
    rho: float = 0.125
    scale: float = 0.1
    warmup: int = 5
    schedule: Schedule = "inverse-rate"

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_not_positive(sigma=self.sigma, rho=self.rho, scale=self.scale)
        refuse_schedule(self.schedule)
        if self.warmup < 0:
            raise ValueError("warmup counts epochs without penalty; it must be 0 or more")

    @abstractmethod
    def learned(self, width: int, rng: torch.Generator) -> Watched:
        """What is learned beside the network, for so many features."""

    @abstractmethod
    def surrogate(self, learned: Any, rng: torch.Generator, z: Tensor, classes: Groups) -> tuple[Tensor, Tensor]:
        """The loss before λ, and the effective share of each class's samples: N×D to a number and C."""

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight == 0:
            return nn.Module()
        return self.learned(flat_features(split, data.images[:1]).shape[1], rng)

    def penalty(self, step: Step) -> Tensor | None:
        """λ acts on the encoder only: the surrogate's own weights get the bare gradient, as published."""
        if self.weight == 0 or step.epoch < self.warmup:
            return None
        learned = step.aux
        assert isinstance(learned, Watched)
        factor = self.weight * SCHEDULES[self.schedule](step.learning_rate)
        z, classes = step.features.flatten(1).float(), by_class(step.y)
        loss, samples = self.surrogate(learned, step.rng, gradient_times(z, factor), classes)
        learned.watch.log(loss, classes, z, samples)
        return loss + (factor - 1) * loss.detach()

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        return aux.watch.notes() if isinstance(aux, Watched) else {}


@dataclass(frozen=True)
class DirectedForm(AttentionForm):
    """An attention form whose own weights descend the penalty, ascend it, or stay as they were drawn."""

    form: Form = "adversarial"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in DIRECTIONS:
            raise ValueError(f"unknown form {self.form!r}; form must be one of {', '.join(DIRECTIONS)}")

    def optimised(self, aux: nn.Module) -> Iterable[nn.Parameter]:
        """The surrogate's weights, unless they stay as drawn: weight decay moves even those without a gradient."""
        return () if self.form == "detached" else aux.parameters()
