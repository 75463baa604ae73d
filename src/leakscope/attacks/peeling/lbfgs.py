"""L-BFGS for many independent problems at once: one row, one problem, no coupling between rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.attacks.peeling.lbfgs_rules import (
    PATIENCE,
    SUFFICIENT_DECREASE,
    WINDOW,
    Minimum,
    Objective,
    lengths,
)
from leakscope.attacks.peeling.lbfgs_unwatched import Limits, minimise_unwatched
from leakscope.nn.curves import mean_of_finite

__all__ = ["Minimum", "Objective", "minimise"]


@dataclass
class _Memory:
    """The last pairs (s, y) of every row; a pair that a row refused has weight zero there."""

    size: int
    s: list[Tensor] = field(default_factory=list)
    y: list[Tensor] = field(default_factory=list)
    rho: list[Tensor] = field(default_factory=list)
    gamma: Tensor | None = None  # scale of the initial inverse Hessian

    def add(self, s: Tensor, y: Tensor) -> None:
        sy, yy = (s * y).sum(1), (y * y).sum(1)
        # A backtracking search does not force positive curvature: pairs without it are left out.
        good = sy > 1e-10 * s.norm(dim=1) * yy.sqrt()
        self.s.append(torch.where(good[:, None], s, 0.0))
        self.y.append(torch.where(good[:, None], y, 0.0))
        self.rho.append(torch.where(good, 1 / sy.where(good, sy.new_ones(())), 0.0))
        scale = sy / yy.where(good, yy.new_ones(()))
        before = torch.zeros_like(sy) if self.gamma is None else self.gamma
        self.gamma = torch.where(good, scale, before)
        if len(self.s) > self.size:
            del self.s[0], self.y[0], self.rho[0]

    def forget(self, rows: Tensor) -> None:
        """Drop the pairs of `rows` (a mask): their next direction is steepest descent."""
        if self.gamma is None:
            return
        self.rho = [torch.where(rows, 0.0, rho) for rho in self.rho]
        self.gamma = torch.where(rows, 0.0, self.gamma)

    def keep(self, rows: Tensor) -> None:
        """Carry only `rows` (a mask) on."""
        self.s, self.y, self.rho = ([item[rows] for item in items] for items in (self.s, self.y, self.rho))
        self.gamma = None if self.gamma is None else self.gamma[rows]

    def direction(self, gradient: Tensor, free: Tensor) -> Tensor:
        """−H·g by the two-loop recursion, on the free variables of each row."""
        q = gradient * free
        # A first step of length one: the curvature is not known yet.
        unit: Tensor = 1 / q.norm(dim=1).clamp_min(torch.finfo(q.dtype).tiny)
        if self.gamma is None:
            return -q * unit[:, None]
        weights: list[Tensor] = []
        for s, y, rho in zip(reversed(self.s), reversed(self.y), reversed(self.rho), strict=True):
            weight = rho * torch.linalg.vecdot(s, q)
            q = torch.addcmul(q, y, weight[:, None], value=-1)
            weights.append(weight)
        q = q * torch.where(self.gamma > 0, self.gamma, unit)[:, None]
        for s, y, rho in zip(self.s, self.y, self.rho, strict=True):
            weight = weights.pop() - rho * torch.linalg.vecdot(y, q)
            q = torch.addcmul(q, s, weight[:, None])
        return -q * free


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    iterations: int,
    memory: int = 20,
    low: float = -math.inf,
    high: float = math.inf,
    tolerance: float = 1e-9,
    solved: float | Tensor = 0.0,
    gain: float = 0.0,
) -> Minimum:
    """Minimise every row of `start` (n×d) within [low, high], by L-BFGS with two-metric projection.

    Variables that stand at a bound and are pushed against it are frozen; the others move along
    −H·g, are projected back into the box, and a per-row Armijo search
    `f(P(x + t·d)) ≤ f(x) + c·gᵀ(P(x + t·d) − x)` halves t until it holds. A row ends when its
    projected gradient vanishes, when its value fell to the share `solved` of the first (one share, or one for each
    row), when it stands still, when `WINDOW` steps lowered it by a smaller share than `gain`, or when no step helps
    even after its memory was dropped; ended rows cost nothing more on a CPU. Accelerators take the same steps without
    being asked after each of them (`lbfgs_unwatched`), and so all of them, whatever a window gained.

    Liu & Nocedal, "On the limited memory BFGS method", 1989; Bertsekas, "Projected Newton methods
    for optimization problems with simple constraints", 1982.
    """
    if start.device.type != "cpu":
        return minimise_unwatched(objective, start, Limits(iterations, memory, low, high, tolerance, solved))
    x = start.detach().clamp(low, high)
    rows = torch.arange(len(x), device=x.device)
    value, gradient = objective(x, rows)
    evaluations = len(x)
    finite = value.isfinite() & gradient.isfinite().all(1)
    best_x, best_value = x.clone(), torch.where(finite, value, math.inf)
    curve = [_mean(best_value)]

    first = value
    # All tensors below hold the rows still under way only.
    rows, x, value, gradient = rows[finite], x[finite], value[finite], gradient[finite]
    past = _Memory(memory)
    stuck = torch.zeros(len(rows), dtype=torch.int64, device=x.device)
    flat = torch.zeros_like(stuck)
    mark = torch.full_like(value, math.inf)  # the value when the present window began
    for number in range(iterations):
        blocked = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
        free = (~blocked).to(x.dtype)
        running = ((gradient * free).abs().amax(1) > tolerance) & (stuck < 2) & (flat < PATIENCE)
        if isinstance(solved, Tensor) or solved > 0:
            running &= value > (solved * first)[rows]
        if gain > 0 and number % WINDOW == 0:
            running &= value < (1 - gain) * mark
            mark = value
        if not running.all():
            rows, x, value, gradient, free, stuck, flat, mark = (
                item[running] for item in (rows, x, value, gradient, free, stuck, flat, mark)
            )
            past.keep(running)
        if len(rows) == 0:
            break
        step = _downhill(past, gradient, free)
        new_x, new_value, new_gradient, moved, spent = _search_line(
            objective, rows, x, value, gradient, step, low=low, high=high
        )
        evaluations += spent
        past.add(new_x - x, new_gradient - gradient)
        past.forget(~moved)
        stuck = torch.where(moved, 0, stuck + 1)
        still = value - new_value <= torch.finfo(x.dtype).eps * value.abs()
        flat = torch.where(moved & still, flat + 1, 0)
        x, value, gradient = new_x, new_value, new_gradient
        best_x[rows], best_value[rows] = x, value
        curve.append(_mean(best_value))
    return Minimum(best_x, best_value, curve, evaluations)


def _downhill(past: _Memory, gradient: Tensor, free: Tensor) -> Tensor:
    """The quasi-Newton direction; the steepest one where round-off, or a pair from another face, turned it uphill."""
    step = past.direction(gradient, free)
    uphill = torch.linalg.vecdot(step, gradient) >= 0
    if uphill.any():
        past.forget(uphill)
        steepest = -gradient * free
        steepest = steepest / steepest.norm(dim=1, keepdim=True).clamp_min(torch.finfo(step.dtype).tiny)
        step = torch.where(uphill[:, None], steepest, step)
    return step


def _search_line(
    objective: Objective,
    rows: Tensor,
    x: Tensor,
    value: Tensor,
    gradient: Tensor,
    step: Tensor,
    *,
    low: float,
    high: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Halve each row's step until it descends enough; only rows still searching are evaluated."""
    new_x, new_value, new_gradient = x.clone(), value.clone(), gradient.clone()
    pending = torch.arange(len(rows), device=x.device)
    spent = 0
    for length in lengths():
        trial = (x[pending] + length * step[pending]).clamp(low, high)
        trial_value, trial_gradient = objective(trial, rows[pending])
        spent += len(pending)
        promised = torch.linalg.vecdot(gradient[pending], trial - x[pending])
        enough = trial_value <= value[pending] + SUFFICIENT_DECREASE * promised
        enough &= trial_value.isfinite() & trial_gradient.isfinite().all(1) & (promised < 0)
        done = pending[enough]
        new_x[done], new_value[done], new_gradient[done] = trial[enough], trial_value[enough], trial_gradient[enough]
        pending = pending[~enough]
        if len(pending) == 0:
            break
    moved = torch.ones(len(rows), dtype=torch.bool, device=x.device)
    moved[pending] = False
    return new_x, new_value, new_gradient, moved, spent


def _mean(values: Tensor) -> float:
    mean = mean_of_finite(values)
    return math.inf if mean is None else mean
