"""The locally competitive algorithm: the reference dynamics, for comparison and for replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.sparse.problem import Diverged, Problem
from leakscope.sparse.progress import Solution


@dataclass(frozen=True)
class Lca:
    """Leaky neurons that charge by their drive and inhibit each other until they settle.

        a = prox_λ(u),   u ← u + (1/τ)(b − u − (G − I)a),   b = corr(pad X),  G = corr∘rec

    Rozell, Johnson, Baraniuk, Olshausen, "Sparse coding via thresholding and local competition in
    neural circuits", Neural Computation 20(10), 2008. `gram` inhibits by one convolution with the
    Gram tensor, otherwise through the residual: b − Ga = corr(pad X − rec a); the iterates agree.
    As in the reference the answer is the `a` before the last state update. `tolerance` > 0 freezes a
    sample once none of its states moves faster than tolerance · max|b|; 0 runs all iterations.

    Differs from the paper: subtracts I instead of zeroing the self term, which is the same for unit
    atoms and stays right for others.
    """

    tau: float = 100.0
    iterations: int = 500
    gram: bool = True
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if self.tau < 1:
            raise ValueError(f"tau must be at least 1 (an explicit Euler step of 1/tau), not {self.tau}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, not {self.iterations}")
        if self.tolerance < 0:
            raise ValueError(f"tolerance must be ≥ 0, not {self.tolerance}; 0 runs all iterations")

    def chunk(self, problem: Problem) -> int:
        """Large convolutions spread over threads by themselves: the whole batch at once."""
        return len(problem)

    def run(self, problem: Problem, start: Tensor | None) -> Solution:
        drive = problem.corr(problem.canvas)
        pull = gram_pull(problem, drive) if self.gram else residual_pull(problem)
        # At rest u = b − (G − I)a, so that is where a warm start puts the state.
        u = torch.zeros_like(drive) if start is None else pull(start) + start
        loudest = drive.flatten(1).abs().amax(1)
        iterations = torch.full((len(problem),), self.iterations, device=drive.device)
        settled = torch.zeros_like(iterations, dtype=torch.bool)
        for k in range(1, self.iterations + 1):
            codes = problem.shrink(u, problem.penalty)
            if k == self.iterations:
                break
            move = pull(codes).add_(codes).sub_(u)
            if self.tolerance > 0:
                still = move.flatten(1).abs().amax(1) <= self.tolerance * loudest
                iterations = torch.where(still & ~settled, k, iterations)
                settled |= still
                if settled.all():
                    break
                move[settled] = 0  # a sample that has settled waits for the others
            u.add_(move, alpha=1 / self.tau)
        objective = problem.objective(codes)
        if not torch.isfinite(objective).all():
            raise Diverged(int((~torch.isfinite(objective)).nonzero()[0]))
        return Solution(codes, objective, iterations, settled)


def residual_pull(problem: Problem) -> Callable[[Tensor], Tensor]:
    """a ↦ corr(pad X − rec a)."""
    return lambda codes: problem.corr(problem.residual(codes))


def gram_pull(problem: Problem, drive: Tensor) -> Callable[[Tensor], Tensor]:
    """a ↦ b − Ga, with G the correlation of the atoms with each other at every shift the grid has."""
    reach = [(k - 1) // step for k, step in zip(problem.atoms.shape[2:], problem.stride, strict=True)]
    padding = [r * step for r, step in zip(reach, problem.stride, strict=True)]
    tensor = F.conv2d(problem.atoms, problem.atoms, stride=problem.stride, padding=padding)
    return lambda codes: drive - F.conv2d(codes, tensor, padding=reach)
