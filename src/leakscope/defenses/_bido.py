"""What both forms of BiDO share: which layers, which kernels, which sign."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Step
from leakscope.core.model import SplitModel
from leakscope.defenses._dependence import gaussian_kernel, label_kernel
from leakscope.defenses._hidden import Hidden, chosen_layers
from leakscope.defenses._weight import refuse_not_positive


@dataclass(frozen=True)
class DependencyOptimization(Defense, ABC):
    """Hidden layers made independent of the picture and dependent on the label; a subclass measures dependence."""

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    input_weight: float
    label_weight: float
    layers: tuple[str, ...] = ()
    sigma: float = 5.0

    def __post_init__(self) -> None:
        for name in ("input_weight", "label_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, and finite; both 0 are no defence")
        refuse_not_positive(sigma=self.sigma)

    @abstractmethod
    def prepared(self, kernel: Tensor) -> Tensor:
        """What `dependence` needs of one m×m kernel matrix."""

    @abstractmethod
    def dependence(self, first: Tensor, second: Tensor) -> Tensor:
        """Of two prepared kernels."""

    @property
    def _idle(self) -> bool:
        return self.input_weight == 0 and self.label_weight == 0

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        return nn.Module() if self._idle else Hidden(chosen_layers(split, data.images[:1], self.layers))

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        if isinstance(aux, Hidden):
            aux.watch(split)
            aux.clear()

    def penalty(self, step: Step) -> Tensor | None:
        if not isinstance(step.aux, Hidden):
            return None
        hidden = step.aux.changing()  # a layer that TL-DMI froze would add a constant
        if not hidden:
            return None
        with torch.autocast(step.x.device.type, enabled=False):
            x = self.prepared(gaussian_kernel(step.x, self.sigma))
            y = self.prepared(label_kernel(step.y, step.scores.shape[1]))
            loss = x.new_zeros(())
            for z in hidden:
                own = self.prepared(gaussian_kernel(z, self.sigma))
                loss = loss + self.input_weight * self.dependence(own, x) - self.label_weight * self.dependence(own, y)
        return loss.to(step.task_loss)

    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        if isinstance(aux, Hidden):
            aux.clear()

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        if not isinstance(aux, Hidden):
            return {}
        aux.stop()
        return {"layers": [name for name, learned in zip(aux.names, aux.learned.tolist(), strict=True) if learned]}
