"""Batched solvers: each row of a batch is a problem of its own, stepped together with the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.attacks.peeling.pieces import Products


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
    damping = torch.as_tensor(damping, dtype=rhs.dtype, device=rhs.device)
    tiny = torch.finfo(rhs.dtype).tiny
    residual = rhs.clone()
    s = jacobian.adjoint(residual)
    if offset is not None:
        s = s - rows(damping.expand(len(rhs)), s) * offset
    x = torch.zeros_like(s)
    p, gamma = s, dot(s, s)
    enough = gamma * tolerance**2
    for _ in range(iterations):
        going = gamma > enough
        if not bool(going.any()):
            break
        q = jacobian.forward(p)
        curvature = dot(q, q) + damping * dot(p, p)
        alpha = torch.where(going & (curvature > tiny), gamma / curvature.clamp_min(tiny), 0.0)
        x = x + rows(alpha, p) * p
        residual = residual - rows(alpha, q) * q
        s = jacobian.adjoint(residual)
        if bool(damping.any()):
            s = s - rows(damping.expand(len(rhs)), x) * (x if offset is None else x + offset)
        renewed = dot(s, s)
        beta = torch.where(going, renewed / gamma.clamp_min(tiny), 0.0)
        p, gamma = s + rows(beta, p) * p, torch.where(going, renewed, gamma)
    return x


def gmres(forward: Callable[[Tensor], Tensor], rhs: Tensor, *, iterations: int, tolerance: float) -> Tensor:
    """`argmin ‖A d − rhs‖` over the Krylov space of a square A, without restart; needs no adjoint.

    Saad and Schultz, "GMRES", 1986.
    """
    scale = norm(rhs)
    tiny = torch.finfo(rhs.dtype).tiny
    basis = [rhs / rows(scale.clamp_min(tiny), rhs)]
    hessenberg = rhs.new_zeros(len(rhs), iterations + 1, iterations)
    target = rhs.new_zeros(len(rhs), iterations + 1, 1)
    target[:, 0, 0] = scale
    weights = rhs.new_zeros(len(rhs), 0, 1)
    for step in range(iterations):
        w = forward(basis[-1])
        stacked = torch.stack([v.flatten(1) for v in basis], 1)  # n × (step+1) × d
        for _ in range(2):  # once more: classical Gram–Schmidt loses orthogonality in one pass
            overlap = torch.einsum("nkd,nd->nk", stacked, w.flatten(1))
            hessenberg[:, : step + 1, step] += overlap
            w = w - torch.einsum("nkd,nk->nd", stacked, overlap).view_as(w)
        length = norm(w)
        hessenberg[:, step + 1, step] = length
        basis.append(w / rows(length.clamp_min(tiny), w))
        block, right = hessenberg[:, : step + 2, : step + 1].nan_to_num(0, 0, 0), target[:, : step + 2]
        weights = torch.linalg.pinv(block) @ right
        left = torch.linalg.vector_norm((block @ weights - right).squeeze(-1), dim=1)
        if bool((left <= tolerance * scale).all()):
            break
    stacked = torch.stack([v.flatten(1) for v in basis[: weights.shape[1]]], 1)
    return torch.einsum("nkd,nk->nd", stacked, weights.squeeze(-1)).view_as(rhs)


class Anderson:
    """Anderson mixing of a fixed-point map x ↦ x + step(x), each row with its own weights.

    The next point minimises the linearised step over the affine hull of the last ones; see Walker and Ni,
    "Anderson acceleration for fixed-point iterations", 2011.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.points: list[Tensor] = []
        self.steps: list[Tensor] = []

    def next(self, x: Tensor, step: Tensor) -> Tensor:
        self.points.append(x)
        self.steps.append(step)
        del self.points[: -self.memory - 1], self.steps[: -self.memory - 1]
        if len(self.points) == 1:
            return x + step
        change = torch.stack([(step - old).flatten(1) for old in self.steps[:-1]], 2)  # n×d×k
        moves = torch.stack([(x - old).flatten(1) for old in self.points[:-1]], 2)
        gram = change.mT @ change
        scale = gram.diagonal(dim1=1, dim2=2).amax(1).clamp_min(torch.finfo(x.dtype).tiny)
        ridge = torch.eye(gram.shape[1], dtype=x.dtype, device=x.device) * (scale * 1e-10)[:, None, None]
        weights = torch.linalg.solve(gram + ridge, change.mT @ step.flatten(1).unsqueeze(-1))
        mixed: Tensor = x + step - ((moves + change) @ weights).squeeze(-1).view_as(x)
        return mixed

    def keep(self, rows: Tensor) -> None:
        self.points = [item[rows] for item in self.points]
        self.steps = [item[rows] for item in self.steps]
