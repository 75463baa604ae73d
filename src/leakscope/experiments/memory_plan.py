"""The memory that an audit will take, planned from bytes before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.devices import free_on
from leakscope.core.memory import said
from leakscope.core.metering import forward_only, measured, with_gradient
from leakscope.core.model import SplitModel
from leakscope.experiments.building import build_split
from leakscope.experiments.goals.pictures import BATCH
from leakscope.experiments.plan import Plan

#: Pictures that a search by gradients works on at once, if they fit.
SEARCHED = 64


@dataclass(frozen=True)
class CutMemory:
    """What one picture takes at a cut, and how many are worked on at once there."""

    cut: str
    forward: int  # bytes per picture through the encoder
    gradient: int  # bytes per picture through the encoder and back
    released_at_once: int
    searched_at_once: int


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of chunks on a device. Memory that runs out all the same halves them (`core.chunks.in_chunks`)."""

    device: str
    free: int  # bytes
    cuts: tuple[CutMemory, ...]

    def words(self) -> str:
        parts = [
            f"{own.cut}: {said(own.forward)} per picture, {said(own.gradient)} with gradients; "
            f"{own.released_at_once} released and {own.searched_at_once} searched at once"
            for own in self.cuts
        ]
        return f"{said(self.free)} free on {self.device}. " + "; ".join(parts)


def plan_memory(plan: Plan, device: torch.device) -> MemoryPlan:
    """Measured on the first target of every cut, untrained: weights change, shapes do not."""
    scene = plan.scene
    example, classes = scene.splits.public.images[:2], scene.outputs
    free, found = free_on(device), []
    for cut in plan.cuts:
        split = build_split(
            scene.architecture, cut, plan.defenses[0], example=example, classes=classes, seed=plan.seeds[0]
        )
        found.append(_of_cut(cut, split.to(device).eval(), example[:1].to(device), free))
    return MemoryPlan(str(device), free, tuple(found))


def _of_cut(cut: str, split: SplitModel, picture: Tensor, free: int) -> CutMemory:
    forward, gradient = measured(forward_only(split.encode), picture), measured(with_gradient(split.encode), picture)
    return CutMemory(
        cut,
        forward.per_picture,
        gradient.per_picture,
        forward.fitting(free, BATCH),
        gradient.fitting(free, SEARCHED),
    )
