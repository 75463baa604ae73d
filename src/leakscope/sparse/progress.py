"""When a sample is done: one stopping rule for the accelerated solvers, kept sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.sparse.problem import Diverged


@dataclass(frozen=True)
class Solution:
    """Codes and what was reached, one number per sample."""

    codes: Tensor
    objective: Tensor
    iterations: Tensor
    converged: Tensor


class Progress:
    """Estimates how far each sample is from its optimum, from its objectives alone.

    An accelerated method has J_k − J* ≈ c/k², so a step gains J_{k−1} − J_k ≈ 2c/k³ and what is left is
    ≈ (k/2)(J_{k−1} − J_k). A sample is done when that estimate is at most tolerance · J_k twice running.
    Measured on random dictionaries (F 28–64, λ 0.1–0.75) the truth is ⅓ to ⅔ of the estimate, whereas
    the duality gap overstates it ten- to fifty-fold and costs another correlation a step.
    """

    #: Below this many half-steps the factor k/2 trusts a warm start too much.
    LEAST_FACTOR = 3.0

    def __init__(self, objective: Tensor, tolerance: float) -> None:
        self.objective = objective
        self.tolerance = tolerance
        self.step = 0
        self.calm = torch.zeros_like(objective, dtype=torch.int64)
        self.rounding = 4 * torch.finfo(objective.dtype).eps

    def advance(self, objective: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Take the new objectives of the samples `index`; returns (objective rose, sample is done)."""
        self.step += 1
        if not torch.isfinite(objective).all():
            raise Diverged(int(index[(~torch.isfinite(objective)).nonzero()[0, 0]]))
        gain = self.objective - objective
        noise = self.rounding * objective
        rose = gain < -noise
        left = gain * max(self.step / 2, self.LEAST_FACTOR)
        # A gain inside the rounding of J says nothing more can be seen at this precision.
        quiet = ~rose & ((left <= self.tolerance * objective) | (gain <= noise))
        self.calm = torch.where(quiet, self.calm + 1, torch.zeros_like(self.calm))
        self.objective = objective
        return rose, self.calm >= 2

    def keep(self, rows: Tensor) -> None:
        self.objective, self.calm = self.objective[rows], self.calm[rows]


def momentum(t: Tensor) -> tuple[Tensor, Tensor]:
    """Nesterov's sequence, one entry a sample: (t⁺, β) with t⁺ = (1 + √(1 + 4t²))/2 and β = (t − 1)/t⁺."""
    following = (1 + (1 + 4 * t.square()).sqrt()) / 2
    return following, (t - 1) / following
