"""How the weight of a CEM penalty follows the learning rate, and its two-stage update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from leakscope.core.defense import Step

Schedule = Literal["constant", "inverse-rate"]

#: The published factor on λ keeps η·λ constant until the rate is small.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda rate: 1.0,
    "inverse-rate": lambda rate: 1.0 if rate < 4.1e-4 else 0.001 / rate,
}


def refuse_schedule(schedule: str) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; schedule must be one of {', '.join(SCHEDULES)}")


def backward_in_two_stages(loss: Tensor, step: Step) -> None:
    """Gradients of the penalty first, set aside; then of the task; then their sum.

    Gradients are linear, so this is `loss.backward()` at the price of a second pass.
    """
    if loss is step.task_loss:
        loss.backward()
        return
    parameters = [p for module in (step.split, step.aux) for p in module.parameters() if p.requires_grad]
    (loss - step.task_loss).backward(retain_graph=True)
    aside = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    step.task_loss.backward()
    for p, privacy in zip(parameters, aside, strict=True):
        if privacy is not None:
            p.grad = privacy if p.grad is None else p.grad + privacy
