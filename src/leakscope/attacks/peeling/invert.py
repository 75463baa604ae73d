"""Inverts one block exactly, by its piecewise linearity.

For a fixed pattern of signs a block is the linear system `(W_s + W_2 D W_1) x = y − c`. So:

1. where the branch contracts, `x ← x + W_s⁺ (y − f(x))` converges to the inverse by itself, faster with
   Anderson mixing when the contraction is weak;
2. otherwise Newton's method re-reads the pattern at every step and solves the linear system without
   building it, by GMRES for square blocks, else by CGLS, which also serves where dimensions are lost:
   then the answer is the least-norm one for its pattern, if the pattern settles.

A ReLU behind the sum makes its own signs known: `y > 0` demands equality, `y = 0` only `f(x) ≤ 0`. These
hinges, and rows that Newton's method leaves open, are left to L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.peeling.chain import Block
from leakscope.attacks.peeling.krylov import Anderson, cgls, dot, gmres, norm, rows
from leakscope.attacks.peeling.lbfgs import minimise
from leakscope.attacks.peeling.maps import rank
from leakscope.attacks.peeling.pieces import Products

_FIXED_POINT_STEPS = 120
_UNWATCHED_STEPS = 24  # of the fixed point, before an accelerator is asked whether it has ended
_NEWTON_STEPS = 25
_KRYLOV_STEPS = 60
_DESCENT_STEPS = 100
_MEMORY = 6
_HALVINGS = 8


@dataclass
class Inverse:
    """The input found for each row of y, and how well it explains y."""

    x: Tensor
    fit: Tensor  # n, ‖y − f(x)‖ / ‖y‖
    method: str  # the last one that was needed


@dataclass
class _Problem:
    """`f(x) = y` for some rows of a batch."""

    block: Block
    y: Tensor
    damping: float

    def take(self, index: Tensor) -> _Problem:
        return _Problem(self.block, self.y[index], self.damping)

    @property
    def hinged(self) -> bool:
        return self.block.outer is not None

    def residual(self, s: Tensor) -> Tensor:
        """`y − s`, but nothing where y = 0 behind a ReLU and s is negative as it must be."""
        left = self.y - s
        return torch.where((self.y > 0) | (s > 0), left, 0.0) if self.hinged else left

    def cost(self, x: Tensor, residual: Tensor) -> Tensor:
        return dot(residual, residual) + self.damping * dot(x, x)

    def linearise(self, x: Tensor) -> tuple[Tensor, Products]:
        s, jacobian = self.block.linearise(x)
        if not self.hinged:
            return self.y - s, jacobian
        seen = ((self.y > 0) | (s > 0)).to(s.dtype)
        masked = Products(lambda v: jacobian.forward(v) * seen, lambda u: jacobian.adjoint(u * seen), jacobian.active)
        return self.residual(s), masked


def invert(block: Block, y: Tensor, *, tolerance: float, noise: float = 0.0, finite: bool = False) -> Inverse:
    """The x with `block(x) = y`, row by row, when y carries noise of this standard deviation.

    `finite` promises that all of y is, which is looked at otherwise.

    A contraction cannot blow noise up, and is undone as it is, no closer than the noise is worth. Any
    other block is solved for its most likely Gaussian input, of standard deviation τ: the minimum of
    ‖y − f(x)‖² + (σ²/τ²)‖x‖².
    """
    usable = y.flatten(1).isfinite().all(1)
    if not finite and not bool(usable.all()):  # nothing to solve for; the fit says so
        x, fit = y.new_zeros(len(y), *block.inputs), y.new_full((len(y),), torch.inf)
        method = "none"
        if bool(usable.any()):
            part = invert(block, y[usable], tolerance=tolerance, noise=noise)
            x[usable], fit[usable], method = part.x, part.fit, part.method
        return Inverse(x, fit, method)
    if block.outer is not None and block.outer.invertible:
        y = block.outer.invert(y)
        block = Block(block.name, block.branch, block.shortcut, None, block.inputs, block.outputs)
    damping = 0.0
    if noise > 0:
        power = float(y.square().mean())
        damping = noise**2 / max(power - noise**2, noise**2)
        tolerance = max(tolerance, 0.02 * min(1.0, noise / max(power, 1e-30) ** 0.5))
    problem = _Problem(block, y, damping)
    pull = block.shortcut.pseudoinverse() if block.shortcut is not None else None
    x = pull(y).clone() if pull is not None else y.new_zeros(len(y), *block.inputs)
    inputs, outputs = block.sizes
    shortcut_rank = None if block.shortcut is None else block.shortcut.rank_bound
    open_rows = torch.arange(len(y), device=y.device)
    method = "given"
    if pull is not None and not problem.hinged and (shortcut_rank or inputs) >= inputs:
        x, done, all_done = _fixed_point(problem, pull, x, tolerance)
        open_rows, method = open_rows[:0] if all_done else open_rows[~done], "fixed point"
        if noise > 0 and outputs > inputs:  # all outputs average the noise, not only those of the shortcut
            x, _ = _newton(_Problem(block, y, 0.0), _cgls_step, x, tolerance)
    solvers = [("newton-cgls", _cgls_step)]
    if outputs < inputs and damping == 0:
        solvers.insert(0, ("newton-cgls, least norm", _least_norm_step))
    if inputs == outputs and damping == 0 and shortcut_rank in (None, inputs):
        solvers.insert(0, ("newton-gmres", _gmres_step))
    for name, step in solvers if not problem.hinged else []:
        if len(open_rows) == 0:
            break
        x[open_rows], done = _newton(problem.take(open_rows), step, x[open_rows], tolerance)
        open_rows, method = open_rows[~done], name
    if len(open_rows):  # Newton's step may cross many signs; descent always goes on
        x[open_rows], method = _descend(problem.take(open_rows), x[open_rows]), "l-bfgs"
    if outputs < inputs and damping == 0 and not problem.hinged:
        x = _least_norm(block, x, y, tolerance)
    fit = norm(problem.residual(block.before_outer(x))) / norm(y).clamp_min(torch.finfo(y.dtype).tiny)
    return Inverse(x, fit, method)


def _least_norm(block: Block, x: Tensor, y: Tensor, tolerance: float) -> Tensor:
    """Move each row to the least-norm solution of its pattern as long as that explains y no worse."""
    for _ in range(_NEWTON_STEPS):
        nearer = solve_pattern(block, x, y, tolerance=tolerance, iterations=2 * _KRYLOV_STEPS)
        left, allowed = norm(y - block.before_outer(nearer)), norm(y - block.before_outer(x))
        good = left <= torch.maximum(allowed, 10 * tolerance * norm(y))
        moved = norm(nearer - x) > 10 * tolerance * norm(x)
        x = torch.where(rows(good, x), nearer, x)
        if not bool((good & moved).any()):
            break
    return x


def solve_pattern(block: Block, x: Tensor, y: Tensor, *, tolerance: float, iterations: int = 500) -> Tensor:
    """The least-norm least-squares solution of the block when all signs stay as they are at x."""
    s, jacobian = block.linearise(x)
    return cgls(jacobian, y - s + jacobian.forward(x), iterations=iterations, tolerance=tolerance)


def _fixed_point(
    problem: _Problem, pull: Callable[[Tensor], Tensor], start: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, bool]:
    """`x ← x + W_s⁺ (y − f(x))`, mixed once it contracts slowly; also which rows converged, and whether all did.

    Rows that have ended stay where they are. On a CPU they are taken out; an accelerator would wait to learn which.
    """
    best, done = start.clone(), torch.zeros(len(start), dtype=torch.bool, device=start.device)
    smallest = torch.full((len(start),), torch.inf, dtype=start.dtype, device=start.device)
    index = torch.arange(len(start), device=start.device)
    x, mixing, before = start, None, None
    going = torch.ones_like(done)
    since = torch.zeros_like(index)  # steps since a row last improved
    every, here, all_done = _looks(start), start.device.type == "cpu", False
    for number in range(1, _FIXED_POINT_STEPS + 1):
        step = pull(problem.y - problem.block.before_outer(x))
        size = norm(step) / norm(x).clamp_min(torch.finfo(x.dtype).tiny)
        better, converged = going & (size < smallest[index]), going & (size <= tolerance)
        smallest[index] = torch.where(better, size, smallest[index])
        since = torch.where(better, 0, since + 1)
        kept = torch.where(rows(better, x), x, best[index])
        best[index] = torch.where(rows(converged, x), x + step, kept)
        done[index] |= converged
        going = going & ~converged
        # Mixing costs more than a step of a contraction that halves the error.
        slow = going & (size > 0.5 * before) if before is not None else torch.zeros_like(going)
        going = going & (since < 10) & size.isfinite()
        if number % every == 0:
            slowly, on, whole, all_done = torch.stack([slow.any(), going.any(), going.all(), done.all()]).tolist()
            if not on:
                break
            if mixing is None and slowly:
                mixing = Anderson(_MEMORY)
            if here and not whole:
                index, x, step, size, since = (item[going] for item in (index, x, step, size, since))
                problem = problem.take(going)
                if mixing is not None:
                    mixing.keep(going)
                going = going[going]
        moved = x + step if mixing is None else mixing.next(x, step)
        x, before = torch.where(rows(going, x), moved, x), size
    return best, done, all_done


def _looks(x: Tensor) -> int:
    """Steps of a fixed point between two looks whether it has ended."""
    return 1 if x.device.type == "cpu" else _UNWATCHED_STEPS


def _gmres_step(problem: _Problem, jacobian: Products, residual: Tensor, x: Tensor) -> Tensor:
    return gmres(jacobian.forward, residual, iterations=_KRYLOV_STEPS, tolerance=1e-3)


def _cgls_step(problem: _Problem, jacobian: Products, residual: Tensor, x: Tensor) -> Tensor:
    return cgls(jacobian, residual, iterations=2 * _KRYLOV_STEPS, tolerance=1e-3, damping=problem.damping, offset=x)


def _least_norm_step(problem: _Problem, jacobian: Products, residual: Tensor, x: Tensor) -> Tensor:
    """Towards the least-norm solution for the pattern at x, not the one nearest to x."""
    return cgls(jacobian, residual + jacobian.forward(x), iterations=2 * _KRYLOV_STEPS, tolerance=1e-4) - x


def _newton(
    problem: _Problem,
    solve: Callable[[_Problem, Products, Tensor, Tensor], Tensor],
    start: Tensor,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Newton on the sign pattern with backtracking; also which rows converged."""
    answer, done = start.clone(), torch.zeros(len(start), dtype=torch.bool, device=start.device)
    index = torch.arange(len(start), device=start.device)
    x = start
    for _ in range(_NEWTON_STEPS):
        residual, jacobian = problem.linearise(x)
        step = solve(problem, jacobian, residual, x)
        cost, moved = problem.cost(x, residual), torch.zeros(len(x), dtype=torch.bool, device=x.device)
        length, trial_x, trial_cost = torch.ones_like(cost), x, cost
        for _ in range(_HALVINGS):
            trial = x + rows(length, x) * step
            renewed = problem.cost(trial, problem.residual(problem.block.before_outer(trial)))
            good = ~moved & (renewed < cost * (1 - 1e-4 * length))
            trial_x = torch.where(rows(good, x), trial, trial_x)
            trial_cost = torch.where(good, renewed, trial_cost)
            moved |= good
            if x.device.type == "cpu" and bool(moved.all()):  # an accelerator would rather try than wait
                break
            length = torch.where(moved, length, length / 2)
        size = norm(trial_x - x) / norm(x).clamp_min(torch.finfo(x.dtype).tiny)
        x = trial_x
        answer[index] = x
        exact = trial_cost.sqrt() <= tolerance * norm(problem.y)
        # Round-off stops the descent a little above an exact fit; a step that small has arrived too.
        arrived = exact | (moved & (size <= tolerance)) | (~moved & (norm(step) <= 10 * tolerance * norm(x)))
        # With noise the cost has a floor; without, a step that gains so little has met a fold of the block.
        stalled = trial_cost > 0.99 * cost
        if problem.damping > 0:
            arrived |= stalled
        done[index[arrived]] = True
        going = moved & ~arrived & ~stalled
        if not bool(going.any()):
            break
        if not bool(going.all()):
            index, x, problem = index[going], x[going], problem.take(going)
    return answer, done


def _descend(problem: _Problem, start: Tensor) -> Tensor:
    def objective(flat: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        x = flat.view(-1, *problem.block.inputs)
        residual, jacobian = problem.take(index).linearise(x)
        gradient = 2 * problem.damping * x - 2 * jacobian.adjoint(residual)
        return problem.cost(x, residual), gradient.flatten(1)

    return minimise(objective, start.flatten(1), iterations=_DESCENT_STEPS, memory=20).x.view_as(start)


@dataclass(frozen=True)
class Injectivity:
    """Whether a block can be inverted at all, at the point it was evaluated.

    rank J ≤ min(outputs that are seen, rank W_s + active units); `rank` is that of the dense Jacobian
    where this is small enough to build, else None.
    """

    inputs: int
    outputs: int
    bound: int
    rank: int | None

    @property
    def deficiency(self) -> int:
        """Dimensions of the input that are lost: exactly where the rank is known, else at least."""
        return self.inputs - (self.bound if self.rank is None else self.rank)


def injectivity(block: Block, x: Tensor, *, dense_limit: int) -> Injectivity:
    """Of the first row of x; see `Injectivity`."""
    inputs, outputs = block.sizes
    s, jacobian = block.linearise(x[:1])
    seen = outputs
    if block.outer is not None and not block.outer.invertible:
        seen = int((block.outer.slopes(s) != 0).sum())
    bound = min(inputs, seen)
    if jacobian.active is not None:
        through = 0 if block.shortcut is None else block.shortcut.rank_bound
        bound = min(bound, (inputs if through is None else through) + int(jacobian.active()[0]))
    exact = None
    if inputs <= dense_limit and block.piecewise_linear:
        columns = jacobian.forward(torch.eye(inputs, dtype=x.dtype, device=x.device).view(inputs, *block.inputs))
        if block.outer is not None:
            columns = columns * block.outer.slopes(s)
        exact = rank(columns.flatten(1))
    return Injectivity(inputs, outputs, bound, exact)
