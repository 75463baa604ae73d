"""Labels that are surer, or less sure, than they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.defense import DEFENSES, Defense, Step

#: Share of alpha in one epoch of so many.
_SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda epoch, epochs: 1.0,
    # α(e − 49)/50 from epoch 50 to 74 of 100, and α from 75 on: (e + 1)/epochs − ½, twice.
    "late": lambda epoch, epochs: (
        0.0 if epoch < 0.5 * epochs else 1.0 if epoch >= 0.75 * epochs else 2 * ((epoch + 1) / epochs - 0.5)
    ),
}


@DEFENSES.register("label-smoothing")
@dataclass(frozen=True)
class LabelSmoothing(Defense):
    """Trains towards smoothed labels; a negative α sharpens them, which hides classes from inversion.

        L = (1 − α) CE + α · mean_k(−log p_k),   so the extra loss is  α · ( mean_k(−log p_k) − CE )

    over all classes k. With `schedule` "late", α is 0 in the first half of training, grows in the third
    quarter to half of its value and is full in the last; "constant" applies it throughout.

    Struppek et al., "Be careful what you smooth for: label smoothing can be a privacy shield but also a
    catalyst for model inversion attacks", ICLR 2024. α = −0.05; a positive α makes attacks easier.

    Differs from the paper: nothing known; its schedule of 100 epochs is scaled to their number.
    """

    alpha: float = -0.05
    schedule: Literal["late", "constant"] = "late"

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    def __post_init__(self) -> None:
        if not -float("inf") < self.alpha <= 1:
            raise ValueError("alpha must be at most 1, such as -0.05; negative sharpens, 0 is no defence")
        if self.schedule not in _SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}; schedule must be one of {', '.join(_SCHEDULES)}")

    def penalty(self, step: Step) -> Tensor | None:
        alpha = self.alpha * _SCHEDULES[self.schedule](step.epoch, step.epochs)
        if alpha == 0:
            return None
        with torch.autocast(step.x.device.type, enabled=False):
            uniform = -step.scores.float().log_softmax(1).mean()
        return alpha * (uniform - step.task_loss)
