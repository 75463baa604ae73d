"""Accelerated coloured block-coordinate descent: the fastest solver here for convolutional codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakscope.sparse import kernel
from leakscope.sparse.problem import Problem
from leakscope.sparse.progress import Progress, Solution, momentum


@dataclass(frozen=True)
class Abcd:
    """Codes whose patches do not overlap are updated together, lattice by lattice.

    Positions a multiple of ⌈k/stride⌉ apart have disjoint patches: one colour. A sweep extrapolates
    Y = R + β(R − R₋), and the residual with it, then for every colour, and for every block b of its
    features, takes the patches T and

        R⁺ = prox(Y + (ω/L_b)(T·Ω_bᵀ − λ)),   T ← T − (R⁺ − Y)·Ω_b,   L_b = λ_max(Ω_b Ω_bᵀ)

    L_b belongs to one patch and is ten times below that of the whole convolution, at the cost of one
    gradient a sweep. After spec/sca.md §7.5; momentum restarts where the objective rises, and without
    momentum a sweep descends for every ω < 2.

    Differs from the study: features are updated in blocks of at most ⅔·C·k². Random atoms in d
    dimensions have L_b ≈ (1 + √(F_b/d))², so the block keeps it near 3 however large the dictionary is:
    F=64 needs 16 sweeps to 1 %, not 22, for the same arithmetic.
    """

    tolerance: float = 1e-2
    sweeps: int = 500
    overrelaxation: float = 1.4

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ValueError(f"tolerance must be ≥ 0, not {self.tolerance}")
        if self.sweeps < 1:
            raise ValueError(f"sweeps must be at least 1, not {self.sweeps}")
        if not 0 < self.overrelaxation < 2:
            raise ValueError(f"overrelaxation must lie in (0, 2) to descend, not {self.overrelaxation}")

    def chunk(self, problem: Problem) -> int:
        """Images whose patches and codes of one colour fill about 2 MB: a core's own cache."""
        if problem.canvas.device.type != "cpu":
            return len(problem)
        widest = Lattice(problem).colors[0]
        floats = widest.down * widest.across * (2 * len(problem.atoms) + problem.atoms[0].numel())
        return max(4, 2_200_000 // (floats * problem.canvas.element_size()))

    def run(self, problem: Problem, start: Tensor | None) -> Solution:
        n, device = len(problem), problem.canvas.device
        descent = descent_of(problem, start, self.overrelaxation)
        progress = Progress(descent.objective(), self.tolerance)
        answer = problem.canvas.new_empty(problem.codes_shape)
        objective = progress.objective.clone()
        iterations = torch.full((n,), self.sweeps, device=device)
        converged = torch.zeros(n, dtype=torch.bool, device=device)
        index = torch.arange(n, device=device)  # which sample each column belongs to
        waiting = torch.ones(n, dtype=torch.bool, device=device)  # columns whose answer is not taken yet
        t = torch.ones(n, dtype=answer.dtype, device=device)
        for k in range(1, self.sweeps + 1):
            t, beta = momentum(t)
            descent.sweep(beta)
            rose, done = progress.advance(descent.objective(), index)
            t = torch.where(rose, torch.ones_like(t), t)
            leave = waiting if k == self.sweeps else waiting & done
            if not leave.any():
                continue
            # Taken now, not at the end, so that an answer does not depend on the sample's neighbours.
            columns = leave.nonzero().flatten()
            rows = index[columns]
            answer[rows] = descent.codes(columns)
            objective[rows], iterations[rows], converged[rows] = progress.objective[columns], k, done[columns]
            waiting = waiting & ~leave
            left = int(waiting.sum())
            if left == 0:
                break
            if 2 * left <= len(waiting):  # moving columns together costs about a sweep
                stay = waiting.nonzero().flatten()
                descent.keep(stay)
                progress.keep(stay)
                index, t, waiting = index[stay], t[stay], waiting[stay]
        return Solution(answer, objective, iterations, converged)


@dataclass(frozen=True)
class Color:
    """One sub-lattice of positions: where it starts, and how many positions it has."""

    top: int
    left: int
    down: int
    across: int


class Lattice:
    """How the positions of a problem fall into colours with disjoint patches."""

    def __init__(self, problem: Problem) -> None:
        self.kernel = problem.atoms.shape[2], problem.atoms.shape[3]
        self.stride = problem.stride
        self.period = tuple(-(-k // step) for k, step in zip(self.kernel, self.stride, strict=True))
        down, across = problem.grid
        self.colors = [
            Color(top, left, (down - 1 - top) // self.period[0] + 1, (across - 1 - left) // self.period[1] + 1)
            for top in range(min(self.period[0], down))
            for left in range(min(self.period[1], across))
        ]

    def patches(self, canvas: Tensor, color: Color) -> Tensor:
        """A view of the colour's patches in a canvas C×H×W×N, as C×kh×kw×down×across×N."""
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.period
        part = canvas[:, color.top * sh :, color.left * sw :]
        return part.unfold(1, kh, ph * sh).unfold(2, kw, pw * sw).permute(0, 4, 5, 1, 2, 3)


def descent_of(problem: Problem, start: Tensor | None, overrelaxation: float) -> Descent | kernel.CompiledDescent:
    """The state of a run: in torch, or compiled where that was asked for and can be had."""
    if kernel.wanted(problem.canvas.dtype, problem.canvas.device):
        return kernel.CompiledDescent(problem, start, Lattice(problem), blocks_of(problem, overrelaxation))
    return Descent(problem, start, overrelaxation)


def blocks_of(problem: Problem, overrelaxation: float) -> list[Block]:
    """Features in blocks of at most ⅔·C·k², with their steps."""
    features, size = len(problem.atoms), problem.atoms[0].numel()
    count = -(-features * 3 // (2 * size))
    return [
        Block.of(atoms, problem.penalty, overrelaxation, problem.nonneg)
        for atoms in problem.atoms.flatten(1).split(-(-features // count))
    ]


class Descent:
    """The state of a run. Samples are the last axis, so gathering patches copies runs of a whole batch.

    Codes are kept colour by colour as F×(down·across·N): the operand of a matrix product, and small
    enough to stay in cache while the colour is worked on. All views are made once: in the inner loop
    making them would cost as much as a product.
    """

    def __init__(self, problem: Problem, start: Tensor | None, overrelaxation: float) -> None:
        self.lattice = Lattice(problem)
        self.grid = problem.grid
        self.penalty, self.nonneg = problem.penalty, problem.nonneg
        features = len(problem.atoms)
        self.blocks = blocks_of(problem, overrelaxation)
        canvas = problem.canvas if start is None else problem.residual(start)
        error = canvas.permute(1, 2, 3, 0).contiguous()  # C×H×W×N
        codes = [self._colored(start, color, features, error) for color in self.lattice.colors]
        self._hold(error, error.clone(), codes, [part.clone() for part in codes])
        self.norm = torch.stack([part.by_sample.abs().sum(0) for part in self.now]).sum(0)  # ‖R‖₁ of each sample

    def _colored(self, start: Tensor | None, color: Color, features: int, error: Tensor) -> Tensor:
        if start is None:
            return error.new_zeros(features, color.down * color.across * error.shape[-1])
        (ph, pw) = self.lattice.period
        return start[:, :, color.top :: ph, color.left :: pw].permute(1, 2, 3, 0).reshape(features, -1).contiguous()

    def _hold(self, error: Tensor, error_before: Tensor, now: list[Tensor], before: list[Tensor]) -> None:
        """Take these as the state; make scratch space by colour shape, and every view of either."""
        n = error.shape[-1]
        rows = [len(block.forward) for block in self.blocks]
        self.error, self.error_before = (
            Canvas(whole, [self.lattice.patches(whole, color) for color in self.lattice.colors])
            for whole in (error, error_before)
        )
        self.now, self.before = ([Strip.of(part, rows, n) for part in parts] for parts in (now, before))
        self.spare: dict[tuple[int, int], Strip] = {}
        self.bench: dict[tuple[int, int], Bench] = {}
        for color, part, view in zip(self.lattice.colors, now, self.error.patches, strict=True):
            if (color.down, color.across) not in self.spare:
                self.spare[color.down, color.across] = Strip.of(torch.empty_like(part), rows, n)
                gathered = part.new_ones(view.shape[:3].numel() + 1, part.shape[1])
                self.bench[color.down, color.across] = Bench(gathered, gathered[:-1], gathered[:-1].view(view.shape))

    def sweep(self, beta: Tensor) -> None:
        """All colours once, from the point extrapolated by β (one per sample)."""
        ahead = 1 + beta
        self.error_before.whole.lerp_(self.error.whole, ahead)
        self.error, self.error_before = self.error_before, self.error
        self.norm = torch.zeros_like(beta)
        for i, color in enumerate(self.lattice.colors):
            shape = color.down, color.across
            now, point, new, bench = self.now[i], self.before[i], self.spare[shape], self.bench[shape]
            bench.as_patches.copy_(self.error.patches[i])
            point.by_sample.lerp_(now.by_sample, ahead)
            for block, at, target in zip(self.blocks, point.blocks, new.blocks, strict=True):
                torch.addmm(at, block.forward, bench.with_ones, out=target)
                if self.nonneg:
                    target.clamp_min_(0)
                else:
                    target.copy_(F.softshrink(target, block.threshold))
                bench.patches.addmm_(block.backward, at.sub_(target))  # T + Ωᵀ(Y − R⁺)
            self.error.patches[i].copy_(bench.as_patches)
            self.norm += (new.by_sample if self.nonneg else new.by_sample.abs()).sum(0)
            self.before[i], self.now[i], self.spare[shape] = now, new, point

    def objective(self) -> Tensor:
        return 0.5 * self.error.whole.square().sum((0, 1, 2)) + self.penalty * self.norm

    def codes(self, columns: Tensor) -> Tensor:
        """The codes of some samples, N×F×down×across."""
        features, n = len(self.now[0].whole), self.error.whole.shape[-1]
        out = self.error.whole.new_empty(len(columns), features, *self.grid)
        (ph, pw), everyone = self.lattice.period, len(columns) == n
        for part, color in zip(self.now, self.lattice.colors, strict=True):
            by_place = part.whole.view(features, color.down, color.across, n)
            chosen = by_place if everyone else by_place[..., columns]
            out[:, :, color.top :: ph, color.left :: pw] = chosen.permute(3, 0, 1, 2)
        return out

    def keep(self, columns: Tensor) -> None:
        """Go on with some samples only."""
        self._hold(
            self.error.whole[..., columns].contiguous(),
            self.error_before.whole[..., columns].contiguous(),
            [part.by_sample[:, columns].view(len(part.whole), -1) for part in self.now],
            [part.by_sample[:, columns].view(len(part.whole), -1) for part in self.before],
        )


@dataclass(frozen=True)
class Canvas:
    """A residual, C×H×W×N, and the patches of each colour in it."""

    whole: Tensor
    patches: list[Tensor]


@dataclass(frozen=True)
class Strip:
    """The codes of one colour, F×(down·across·N); by sample (one a column); by block of features."""

    whole: Tensor
    by_sample: Tensor
    blocks: tuple[Tensor, ...]

    @staticmethod
    def of(whole: Tensor, rows: list[int], n: int) -> Strip:
        return Strip(whole, whole.view(-1, n), whole.split(rows))


@dataclass(frozen=True)
class Bench:
    """Where the patches of a colour are worked on: d×(down·across·N), over a row of ones that carries −λ."""

    with_ones: Tensor
    patches: Tensor
    as_patches: Tensor  # C×kh×kw×down×across×N


@dataclass(frozen=True)
class Block:
    """Some atoms with their step: `forward` maps patches with a row of ones to the gradient step."""

    forward: Tensor  # F_b×(d + 1), scaled by ω/L_b, −λω/L_b in the last column
    backward: Tensor  # d×F_b
    threshold: float  # λω/L_b, for signed codes

    @staticmethod
    def of(atoms: Tensor, penalty: float, overrelaxation: float, nonneg: bool) -> Block:
        gram = atoms @ atoms.T if len(atoms) <= atoms.shape[1] else atoms.T @ atoms
        top = float(torch.linalg.eigvalsh(gram)[-1])
        step = overrelaxation / max(top, torch.finfo(atoms.dtype).eps)
        bias = atoms.new_full((len(atoms), 1), -penalty * step if nonneg else 0.0)
        return Block(torch.cat([atoms * step, bias], 1), atoms.T.contiguous(), penalty * step)
