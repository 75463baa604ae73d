"""Batched solvers: each row of a batch is a problem of its own, stepped together with the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.attacks.peeling.pieces import Products
from leakscope.core.devices import look_every

_BASIS_BYTES = 2**31  # of the vectors that one GMRES solve keeps
_LEAST_BASIS = 8  # of them, however large


def dot(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
    return product


def norm(a: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(a.flatten(1), dim=1)
    return length


def rows(weights: Tensor, like: Tensor) -> Tensor:
    """One number per row, shaped to multiply `like`."""
    return weights.view(-1, *(1 for _ in like.shape[1:]))


def cgls(
    jacobian: Products,
    rhs: Tensor,
    *,
    iterations: int,
    tolerance: float,
    damping: Tensor | float = 0.0,
    offset: Tensor | None = None,
) -> Tensor:
    """`argmin_d ‖J d − rhs‖² + damping ‖offset + d‖²` by conjugate gradients on the normal equations.

    Started at zero, every iterate is in the range of Jᵀ (without offset): where J loses dimensions the
    answer is the least-norm one. A row stops when the gradient has fallen by `tolerance`.

    Björck, Elfving and Strakoš, "Stability of conjugate gradient and Lanczos methods for linear least
    squares problems", 1998.
    """
    damped = bool(damping.any()) if isinstance(damping, Tensor) else damping != 0
    damping = torch.as_tensor(damping, dtype=rhs.dtype, device=rhs.device) if damped else rhs.new_zeros(())
    tiny = torch.finfo(rhs.dtype).tiny
    residual = rhs.clone()
    s = jacobian.adjoint(residual)
    if offset is not None:
        s = s - rows(damping.expand(len(rhs)), s) * offset
    x = torch.zeros_like(s)
    p, gamma = s, dot(s, s)
    enough = gamma * tolerance**2
    every = look_every(rhs.device, iterations, looks=2)
    for step in range(iterations):
        going = gamma > enough
        if (step + 1) % every == 0 and not bool(going.any()):  # rows that have ended stay where they are
            break
        q = jacobian.forward(p)
        curvature = dot(q, q) + damping * dot(p, p)
        alpha = torch.where(going & (curvature > tiny), gamma / curvature.clamp_min(tiny), 0.0)
        x = x + rows(alpha, p) * p
        residual = residual - rows(alpha, q) * q
        s = jacobian.adjoint(residual)
        if damped:
            s = s - rows(damping.expand(len(rhs)), x) * (x if offset is None else x + offset)
        renewed = dot(s, s)
        beta = torch.where(going, renewed / gamma.clamp_min(tiny), 0.0)
        p, gamma = s + rows(beta, p) * p, torch.where(going, renewed, gamma)
    return x


def gmres(forward: Callable[[Tensor], Tensor], rhs: Tensor, *, iterations: int, tolerance: float) -> Tensor:
    """`argmin ‖A d − rhs‖` over the Krylov space of a square A, without restart; needs no adjoint.

    The basis is one tensor; where problems are so large that it would pass two gigabytes, it has fewer vectors.

    Saad and Schultz, "GMRES", 1986.
    """
    count, size = len(rhs), rhs[0].numel()
    fitting = _BASIS_BYTES // (count * size * rhs.element_size()) - 1
    iterations = min(iterations, max(_LEAST_BASIS, fitting))
    scale = norm(rhs)
    tiny = torch.finfo(rhs.dtype).tiny
    basis = rhs.new_empty(count, iterations + 1, size)
    basis[:, 0] = (rhs / rows(scale.clamp_min(tiny), rhs)).flatten(1)
    hessenberg = rhs.new_zeros(count, iterations + 1, iterations)
    target = rhs.new_zeros(count, iterations + 1, 1)
    target[:, 0, 0] = scale
    weights = rhs.new_zeros(count, 0, 1)
    every, arrived = look_every(rhs.device, iterations), torch.zeros((), dtype=torch.bool, device=rhs.device)
    for step in range(iterations):
        w = forward(basis[:, step].view_as(rhs)).flatten(1)
        known = basis[:, : step + 1]
        for _ in range(2):  # once more: classical Gram–Schmidt loses orthogonality in one pass
            overlap = torch.einsum("nkd,nd->nk", known, w)
            hessenberg[:, : step + 1, step] += overlap
            w = w - torch.einsum("nkd,nk->nd", known, overlap)
        length = norm(w)
        hessenberg[:, step + 1, step] = length
        basis[:, step + 1] = w / length.clamp_min(tiny)[:, None]
        block, right = hessenberg[:, : step + 2, : step + 1].nan_to_num(0, 0, 0), target[:, : step + 2]
        renewed = torch.linalg.pinv(block) @ right
        # Where nobody has looked since all rows arrived, what they arrived with stays.
        weights = torch.where(arrived, torch.nn.functional.pad(weights, (0, 0, 0, 1)), renewed)
        left = torch.linalg.vector_norm((block @ renewed - right).squeeze(-1), dim=1)
        arrived = arrived | (left <= tolerance * scale).all()
        if (step + 1) % every == 0 and bool(arrived):
            break
    return torch.einsum("nkd,nk->nd", basis[:, : weights.shape[1]], weights.squeeze(-1)).view_as(rhs)


class Anderson:
    """Anderson mixing of a fixed-point map x ↦ x + step(x), each row with its own weights.

    The next point minimises the linearised step over the affine hull of the last ones; see Walker and Ni,
    "Anderson acceleration for fixed-point iterations", 2011. Differences are kept in one tensor each, used as a ring.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.taken = 0
        self.last: tuple[Tensor, Tensor] | None = None
        self.changes, self.moves = torch.empty(0), torch.empty(0)  # n×k×d: of the step, and of where it leads

    def next(self, x: Tensor, step: Tensor) -> Tensor:
        if self.last is None:
            self.changes, self.moves = (x.new_empty(len(x), self.memory, x[0].numel()) for _ in range(2))
            self.last = x, step
            return x + step
        place = self.taken % self.memory
        torch.sub(step.flatten(1), self.last[1].flatten(1), out=self.changes[:, place])
        torch.sub(x.flatten(1), self.last[0].flatten(1), out=self.moves[:, place])
        self.moves[:, place] += self.changes[:, place]
        self.last, self.taken = (x, step), self.taken + 1
        known = min(self.taken, self.memory)
        change, moves = self.changes[:, :known], self.moves[:, :known]
        gram = change @ change.mT
        # Steps shrink as they converge: each difference in its own unit, or the ridge would drown the last ones.
        unit = gram.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(x.dtype).tiny).rsqrt()[:, :, None]
        ridge = 4 * torch.finfo(x.dtype).eps * torch.eye(known, dtype=x.dtype, device=x.device)
        # Unchecked: rows that stand still have a singular system, and whoever asks sees that they are not finite.
        right = unit * (change @ step.flatten(1).unsqueeze(-1))
        weights = unit * torch.linalg.solve_ex(unit * gram * unit.mT + ridge, right).result
        mixed: Tensor = x + step - torch.einsum("nkd,nk->nd", moves, weights.squeeze(-1)).view_as(x)
        return mixed

    def keep(self, rows: Tensor) -> None:
        if self.last is not None:  # else it has not seen a step yet
            self.changes, self.moves = self.changes[rows], self.moves[rows]
            self.last = self.last[0][rows], self.last[1][rows]
