"""The L-BFGS of lbfgs.py for accelerators: the same trials row by row, but nobody looks at them while they run.

On a CPU a batch can stop for its rows: ended rows are taken out, and a line search goes on with those that need a
shorter step. On an accelerator each such look waits for all work under way. Here every round evaluates every row
once. A row whose trial descends enough goes on to its next step, another one shortens its own; rows that have ended
stay where they are. So each row sees the trials that it would see on the CPU, only at another time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.peeling.lbfgs_rules import BACKTRACKS, PATIENCE, SUFFICIENT_DECREASE, Minimum, Objective, lengths
from leakscope.core.devices import look_every

_ROUNDS = 16  # at least, between two looks whether all rows have ended


@dataclass
class _Memory:
    """The last pairs (s, y) of every row, oldest first; an empty place and a refused pair have weight zero."""

    s: Tensor  # n×m×d
    y: Tensor
    rho: Tensor  # n×m
    gamma: Tensor  # n; 0: curvature unknown

    @staticmethod
    def empty(like: Tensor, size: int) -> _Memory:
        pairs = like.new_zeros(len(like), size, like.shape[1])
        return _Memory(pairs, pairs.clone(), pairs[:, :, 0].clone(), pairs[:, 0, 0].clone())

    def add(self, s: Tensor, y: Tensor, rows: Tensor) -> None:
        """A pair for each of `rows` (a mask)."""
        sy, yy = (s * y).sum(1), (y * y).sum(1)
        good = sy > 1e-10 * s.norm(dim=1) * yy.sqrt()
        rho = torch.where(good, 1 / sy.where(good, sy.new_ones(())), 0.0)
        self.s = _pushed(self.s, torch.where(good[:, None], s, 0.0), rows)
        self.y = _pushed(self.y, torch.where(good[:, None], y, 0.0), rows)
        self.rho = _pushed(self.rho, rho, rows)
        self.gamma = torch.where(rows & good, sy / yy.where(good, yy.new_ones(())), self.gamma)

    def forget(self, rows: Tensor) -> None:
        self.rho = self.rho.masked_fill(rows[:, None], 0.0)
        self.gamma = self.gamma.masked_fill(rows, 0.0)

    def direction(self, gradient: Tensor, free: Tensor) -> Tensor:
        q = gradient * free
        unit: Tensor = 1 / q.norm(dim=1).clamp_min(torch.finfo(q.dtype).tiny)
        weights = []
        for at in reversed(range(self.rho.shape[1])):
            weight = self.rho[:, at] * torch.linalg.vecdot(self.s[:, at], q)
            q = torch.addcmul(q, self.y[:, at], weight[:, None], value=-1)
            weights.append(weight)
        q = q * torch.where(self.gamma > 0, self.gamma, unit)[:, None]
        for at in range(self.rho.shape[1]):
            weight = weights.pop() - self.rho[:, at] * torch.linalg.vecdot(self.y[:, at], q)
            q = torch.addcmul(q, self.s[:, at], weight[:, None])
        return -q * free


def _pushed(kept: Tensor, new: Tensor, rows: Tensor) -> Tensor:
    """The queue of every one of `rows` moved up by one, `new` at its end."""
    moved = torch.cat([kept[:, 1:], new[:, None]], 1)
    return torch.where(rows.view(-1, *[1] * (kept.ndim - 1)), moved, kept)


@dataclass(frozen=True)
class Limits:
    """What ends a row, and the box it stays in."""

    iterations: int
    memory: int
    low: float
    high: float
    tolerance: float
    solved: float | Tensor


def minimise_unwatched(objective: Objective, start: Tensor, limits: Limits) -> Minimum:
    """As `lbfgs.minimise`, which documents the method."""
    run = _Run(objective, start.detach().clamp(limits.low, limits.high), limits)
    rounds = max(_ROUNDS, look_every(start.device, limits.iterations)) if limits.iterations else 0
    while True:
        for _ in range(rounds):
            run.round()
        going, found = run.look()
        if not going or rounds == 0:
            return found
        rounds *= 2  # so that looks stay few, however long the slowest row takes


class _Run:
    """All rows of one minimisation."""

    def __init__(self, objective: Objective, x: Tensor, limits: Limits) -> None:
        self.objective, self.limits, self.x = objective, limits, x
        self.rows = torch.arange(len(x), device=x.device)
        self.value, self.gradient = objective(x, self.rows)
        self.alive = self.value.isfinite() & self.gradient.isfinite().all(1)
        self.usable, self.first = self.alive, self.value
        self.past = _Memory.empty(x, limits.memory)
        self.step = torch.zeros_like(x)
        self.fresh = self.alive  # rows that begin a step with this round
        self.stuck, self.flat, self.taken, self.tries = (torch.zeros_like(self.rows) for _ in range(4))
        self.lengths = torch.tensor(lengths(), dtype=x.dtype, device=x.device)
        self.course = self.value[:, None].repeat(1, limits.iterations + 1)  # the value after each step
        self.evaluations = torch.full((), len(x), device=x.device)

    def round(self) -> None:
        """Every row tries once."""
        self._begin_steps()
        low, high = self.limits.low, self.limits.high
        trial = (self.x + self.lengths[self.tries][:, None] * self.step).clamp(low, high)
        value, gradient = self.objective(trial, self.rows)
        self.evaluations = self.evaluations + self.alive.sum()
        promised = torch.linalg.vecdot(self.gradient, trial - self.x)
        enough = value <= self.value + SUFFICIENT_DECREASE * promised
        enough &= value.isfinite() & gradient.isfinite().all(1) & (promised < 0)
        moved = self.alive & enough
        failed = self.alive & ~enough & (self.tries == BACKTRACKS - 1)
        new_x, new_gradient = (
            torch.where(moved[:, None], new, old) for new, old in ((trial, self.x), (gradient, self.gradient))
        )
        new_value = torch.where(moved, value, self.value)
        over = moved | failed
        self.past.add(new_x - self.x, new_gradient - self.gradient, over)
        self.past.forget(failed)
        still = self.value - new_value <= torch.finfo(new_x.dtype).eps * self.value.abs()
        self.stuck = torch.where(moved, 0, self.stuck + failed.long())
        self.flat = torch.where(over, torch.where(moved & still, self.flat + 1, 0), self.flat)
        self.tries = torch.where(over, 0, self.tries + (self.alive & ~over).long())
        self.x, self.value, self.gradient = new_x, new_value, new_gradient
        self.taken = self.taken + over.long()
        self.course.scatter_(1, self.taken[:, None], self.value[:, None])
        self.alive = self.alive & (self.taken < self.limits.iterations)
        self.fresh = over & self.alive

    def _begin_steps(self) -> None:
        """End rows that have arrived, and give the others that begin a step their direction."""
        limits, x, gradient = self.limits, self.x, self.gradient
        blocked = ((x <= limits.low) & (gradient > 0)) | ((x >= limits.high) & (gradient < 0))
        free = (~blocked).to(x.dtype)
        running = ((gradient * free).abs().amax(1) > limits.tolerance) & (self.stuck < 2) & (self.flat < PATIENCE)
        if isinstance(limits.solved, Tensor) or limits.solved > 0:
            running &= self.value > limits.solved * self.first
        self.alive = self.alive & (running | ~self.fresh)
        step = self.past.direction(gradient, free)
        uphill = self.fresh & (torch.linalg.vecdot(step, gradient) >= 0)
        self.past.forget(uphill)
        steepest = -gradient * free
        steepest = steepest / steepest.norm(dim=1, keepdim=True).clamp_min(torch.finfo(step.dtype).tiny)
        step = torch.where(uphill[:, None], steepest, step)
        self.step = torch.where(self.fresh[:, None], step, self.step)

    def look(self) -> tuple[bool, Minimum]:
        """Whether a row is still under way, and where all are: one wait for everything that is to be known."""
        steps = torch.arange(self.course.shape[1], device=self.x.device)
        reached = torch.minimum(steps, self.taken[:, None])  # a row that has ended stays at its last value
        course = torch.where(self.usable[:, None], self.course.gather(1, reached), torch.nan)
        counts = torch.stack([self.taken.max(), self.evaluations, self.alive.sum()])
        *curve, taken, evaluations, alive = torch.cat([course.nanmean(0), counts.to(course)]).tolist()
        curve = [math.inf if math.isnan(mean) else mean for mean in curve[: int(taken) + 1]]
        value = torch.where(self.usable, self.value, math.inf)
        return alive > 0, Minimum(self.x, value, curve, int(evaluations))
