"""Generated pictures that mislead an attacker, and weights that remember the task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Step
from leakscope.core.model import SplitModel
from leakscope.defenses._deception import Deceiver, tuning
from leakscope.defenses._weight import refuse_weight
from leakscope.defenses.gong import Gong


class Memory(nn.Module):
    """What each weight was when tuning began, and how much the task depends on it."""

    seen: Tensor
    fixed: Tensor

    def __init__(self, split: SplitModel) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("fixed", torch.tensor(False))
        for index, parameter in enumerate(split.parameters()):
            self.register_buffer(f"importance{index}", torch.zeros_like(parameter))
            self.register_buffer(f"anchor{index}", torch.zeros_like(parameter))

    def _each(self, split: SplitModel) -> list[tuple[nn.Parameter, Tensor, Tensor]]:
        return [
            (p, self.get_buffer(f"importance{i}"), self.get_buffer(f"anchor{i}"))
            for i, p in enumerate(split.parameters())
        ]

    @torch.no_grad()
    def learn(self, split: SplitModel) -> None:
        """Running mean of squared gradients of the task, before tuning."""
        self.seen += 1
        for p, importance, _ in self._each(split):
            if p.grad is not None:
                importance.lerp_(p.grad.square(), 1 / min(float(self.seen), 100.0))

    @torch.no_grad()
    def fix(self, split: SplitModel) -> None:
        if not self.fixed:
            for p, _, anchor in self._each(split):
                anchor.copy_(p)
            self.fixed.fill_(True)

    def forgotten(self, split: SplitModel, batch: int) -> Tensor:
        """½ Σ F (θ − θ*)²; a gradient over a batch has 1/batch of the variance of one sample's."""
        terms = [(f * (p - anchor).square()).sum() for p, f, anchor in self._each(split)]
        return 0.5 * batch * torch.stack(terms).sum()


class Continual(nn.Module):
    """A deceiver and a memory."""

    def __init__(self, deceiver: nn.Module, memory: Memory) -> None:
        super().__init__()
        self.deceiver = deceiver
        self.memory = memory


@DEFENSES.register("gong++")
@dataclass(frozen=True)
class GongContinual(Gong):
    """`gong`, with weights held where the task needs them while the network is tuned.

        L = L_gong + μ · ½ Σ_i F_i (θ_i − θ*_i)²

    with θ* the weights when tuning begins, F the diagonal Fisher information of the task, estimated by the squared
    gradients of the steps before, and μ the `memory`. With no step before tuning there is nothing to remember.

    After Gong et al., "A GAN-based defense framework against model inversion attacks", IEEE TIFS 2023, which
    adopts "the concept of continual learning to improve the utility"; here that is elastic weight
    consolidation: Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017.

    Differs from the paper: as `gong` does; which continual learning it uses the abstract does not say. The "++"
    of Dibbo et al., "Sparse coding architecture", 2024, differs from their plain version by a constant.
    """

    memory: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_weight(self.memory)

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        deceiver = super().setup(split, data, rng)
        return Continual(deceiver, Memory(split)) if isinstance(deceiver, Deceiver) else deceiver

    def penalty(self, step: Step) -> Tensor | None:
        if not isinstance(step.aux, Continual) or not tuning(step, self.start):
            return None
        memory = step.aux.memory
        memory.fix(step.split)
        misled = super().penalty(replace(step, aux=step.aux.deceiver))
        assert misled is not None
        return misled + self.memory * memory.forgotten(step.split, len(step.x))

    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        if isinstance(aux, Continual) and not aux.memory.fixed:
            aux.memory.learn(split)

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        if not isinstance(aux, Continual):
            return {}
        with torch.no_grad():
            return {"forgotten": aux.memory.forgotten(split, 1).item() if aux.memory.fixed else 0.0}
