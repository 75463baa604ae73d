"""FISTA with a step from power iteration and a restart for each sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.sparse.problem import Problem
from leakscope.sparse.progress import Progress, Solution, momentum


@dataclass(frozen=True)
class Fista:
    """Accelerated proximal gradient on all codes at once; few, large operations.

        R⁺ = prox_{λ/L}(Y + (1/L) corr(pad X − rec Y)),   Y⁺ = R⁺ + β(R⁺ − R)

    Beck, Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse problems",
    SIAM J. Imaging Sciences 2(1), 2009; momentum restarts where ⟨Y − R⁺, R⁺ − R⟩ > 0 (O'Donoghue,
    Candès, "Adaptive restart for accelerated gradient schemes", 2015).

    Differs from the paper: only rec(R) is computed. The residual is affine in the codes, so that of Y
    is E + β(E − E₋), which makes the objective of every R free.
    """

    tolerance: float = 1e-2
    iterations: int = 1000
    power_iterations: int = 30

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ValueError(f"tolerance must be ≥ 0, not {self.tolerance}")
        if min(self.iterations, self.power_iterations) < 1:
            raise ValueError("iterations and power_iterations must be at least 1")

    def chunk(self, problem: Problem) -> int:
        """Images whose codes fill about 4 MB, which the caches of one core can hold."""
        if problem.canvas.device.type != "cpu":
            return len(problem)
        per_image = problem.canvas.element_size() * len(problem.atoms) * problem.grid[0] * problem.grid[1]
        return max(4, 4_000_000 // per_image)

    def run(self, problem: Problem, start: Tensor | None) -> Solution:
        n, device = len(problem), problem.canvas.device
        step = 1 / lipschitz(problem, self.power_iterations)
        codes = problem.canvas.new_zeros(problem.codes_shape) if start is None else start.clone()
        error = problem.canvas.clone() if start is None else problem.residual(codes)
        before, error_before = codes, error
        progress = Progress(problem.objective_of(error, codes), self.tolerance)
        t = torch.ones(n, dtype=codes.dtype, device=device)

        answer, objective = codes.clone(), progress.objective.clone()
        iterations = torch.full((n,), self.iterations, device=device)
        converged = torch.zeros(n, dtype=torch.bool, device=device)
        index = torch.arange(n, device=device)  # which samples the rows below belong to
        open_ = problem
        for k in range(1, self.iterations + 1):
            t, beta = momentum(t)
            beta = beta.view(-1, 1, 1, 1)
            point = torch.lerp(before, codes, 1 + beta)
            pull = open_.corr(torch.lerp(error_before, error, 1 + beta))
            before, error_before = codes, error
            codes = open_.shrink(torch.add(point, pull, alpha=step), step * open_.penalty)
            error = open_.residual(codes)
            uphill = ((point - codes) * (codes - before)).flatten(1).sum(1) > 0
            t = torch.where(uphill, torch.ones_like(t), t)
            _, done = progress.advance(open_.objective_of(error, codes), index)
            if k == self.iterations:
                done = torch.ones_like(done)
            if not done.any():
                continue
            leaving = index[done]
            answer[leaving], objective[leaving] = codes[done], progress.objective[done]
            iterations[leaving], converged[leaving] = k, progress.calm[done] >= 2
            stay = (~done).nonzero().flatten()
            if len(stay) == 0:
                break
            index, t, open_ = index[stay], t[stay], open_.take(stay)
            codes, before, error, error_before = codes[stay], before[stay], error[stay], error_before[stay]
            progress.keep(stay)
        return Solution(answer, objective, iterations, converged)


def lipschitz(problem: Problem, iterations: int) -> float:
    """λ_max of corr∘rec by power iteration, 2 % up because the iteration comes from below.

    The start is all ones where atoms agree in sign and alternates elsewhere: any vector that is not
    orthogonal to the top eigenvector does, and a fixed one keeps the solver free of random draws.
    """
    _, features, down, across = problem.codes_shape
    ramp = torch.arange(features * down * across, dtype=problem.atoms.dtype, device=problem.atoms.device)
    vector = torch.cos(ramp * ramp * 0.37).view(1, features, down, across)  # aperiodic, so in general position
    top = vector.new_zeros(())
    for _ in range(iterations):
        vector = problem.corr(problem.rec(vector))
        top = vector.norm()
        vector = vector / top.clamp_min(torch.finfo(vector.dtype).tiny)
    return max(1.02 * float(top), torch.finfo(vector.dtype).eps)
