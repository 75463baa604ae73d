"""Gradients through a solution without unrolling its solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakscope.sparse.problem import Problem, Terms, as_images, like, pose, window


@dataclass(frozen=True)
class Implicit:
    """Conjugate gradients on the active set.

    On the support M of an optimum, corr(pad X − rec R) = λ·sign(R). Differentiating it, an incoming
    gradient V gives w from

        M·corr(rec(w)) = M·V,   ∂X = rec(w),   ∂Ω = ∂_Ω ⟨rec_Ω(w), E⟩ − ∂_Ω ⟨rec_Ω(R), rec(w)⟩

    with E the residual (spec/sca.md §7.5). The derivative is that of the exact optimum: the tighter the
    solver's tolerance, the truer. Where the active atoms depend on each other the system is singular;
    stopping early then acts as regularisation.
    """

    iterations: int = 50
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.tolerance < 0:
            raise ValueError("implicit gradients need iterations ≥ 1 and tolerance ≥ 0")

    def active_solve(self, problem: Problem, active: Tensor, right: Tensor) -> Tensor:
        """w with M·corr(rec(w)) = M·right, all samples side by side; a sample that is done stands still."""
        r = torch.where(active, right, 0.0)
        w, p = torch.zeros_like(r), r.clone()
        square = r.flatten(1).square().sum(1)
        goal = self.tolerance**2 * square
        for _ in range(self.iterations):
            going = square > goal
            if not going.any():
                break
            image = torch.where(active, problem.corr(problem.rec(p)), 0.0)
            curvature = (p * image).flatten(1).sum(1)
            going &= curvature > 0
            length = torch.where(going, square / torch.where(going, curvature, 1.0), 0.0).view(-1, 1, 1, 1)
            w += length * p
            r -= length * image
            following = r.flatten(1).square().sum(1)
            turn = torch.where(going, following / torch.where(going, square, 1.0), 0.0).view(-1, 1, 1, 1)
            p = r + turn * p
            square = torch.where(going, following, torch.zeros_like(square))
        return w


class _Codes(torch.autograd.Function):
    """The identity on codes, with the derivative of the optimum they are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dictionary: Tensor, codes: Tensor, terms: Terms, implicit: Implicit) -> Tensor:
        ctx.save_for_backward(x, dictionary, codes)
        ctx.terms, ctx.implicit = terms, implicit
        return codes.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, dictionary, codes = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            problem = pose(x, dictionary, **ctx.terms)
            codes = as_images(codes)
            w = ctx.implicit.active_solve(problem, codes != 0, as_images(incoming))
            canvas = problem.rec(w)
            for_x = for_atoms = None
            if ctx.needs_input_grad[0]:
                for_x = like(window(canvas, problem.atoms, as_images(x).shape[2:]), x.ndim)
            if ctx.needs_input_grad[1]:
                gradient = problem.atom_gradient(problem.residual(codes), w) - problem.atom_gradient(canvas, codes)
                for_atoms = like(gradient, x.ndim)
        return for_x, for_atoms, None, None, None


def differentiable(codes: Tensor, x: Tensor, dictionary: Tensor, implicit: Implicit, **terms: Unpack[Terms]) -> Tensor:
    """Codes that `solve` found for `x`, with implicit gradients for `x` and `dictionary`."""
    attached: Tensor = _Codes.apply(x, dictionary, codes, terms, implicit)  # type: ignore[no-untyped-call]
    return attached
