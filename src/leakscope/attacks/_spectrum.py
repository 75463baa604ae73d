"""Ridge regression for every strength at once, from one eigendecomposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SKETCH = 64  # target columns that leave-one-out looks at
_WEIGHT_ELEMENTS = 2**26  # above this the weight matrix stays in two factors


def sketched(targets: Tensor, rng: torch.Generator) -> Tensor:
    """A few random combinations of the target columns, whose squared error is that of all in expectation."""
    columns = targets.shape[1]
    if columns <= _SKETCH:
        return targets
    mix = torch.randn(columns, _SKETCH, generator=rng, device=targets.device, dtype=targets.dtype)
    sketch: Tensor = targets @ (mix / _SKETCH**0.5)
    return sketch


@dataclass(frozen=True)
class Spectrum:
    """Centred rows Z (n×D) as Z = T·Vᵀ with TᵀT = diag(eigenvalues): every ridge fit shares it.

    Primal (D ≤ n): V diagonalises ZᵀZ and T = ZV. Dual (D > n): ZZᵀ = U·diag(s)·Uᵀ, T = U·√s.
    """

    eigenvalues: Tensor  # r
    scores: Tensor  # T, n×r
    vectors: Tensor  # V (D×r) in the primal, U (n×r) in the dual
    dual: bool

    @classmethod
    def of(cls, z: Tensor) -> Spectrum:
        rows, columns = z.shape
        dual = columns + 1 >= rows  # from here on a fit may go through every row
        eigenvalues, vectors = torch.linalg.eigh(z @ z.T if dual else z.T @ z)
        rounding = rows * torch.finfo(z.dtype).eps * eigenvalues[-1]
        eigenvalues = torch.where(eigenvalues > rounding, eigenvalues, 0)
        scores = vectors * eigenvalues.sqrt() if dual else z @ vectors
        return cls(eigenvalues, scores, vectors, dual)

    def left_out_errors(self, x: Tensor, strengths: Sequence[float], draws: int) -> list[float]:
        """Mean over rows of the squared error when all draws of a picture are left out, for each strength.

        Read once for all: every look makes an accelerator wait. Infinite for a strength whose fit says nothing of
        pictures that it leaves out.
        """
        errors = [self.residuals(x, strength, draws)[1].square().sum() / len(x) for strength in strengths]
        found: list[float] = torch.stack(errors).nan_to_num(torch.inf, torch.inf).tolist()
        return found

    def residuals(self, x: Tensor, strength: float, draws: int) -> tuple[Tensor, Tensor]:
        """Residuals of the fit, and of the fits that leave out all draws of a picture, pictures×draws×columns.

        With H = 11ᵀ/n + T(s + λ)⁻¹Tᵀ, the fit without the rows of picture i errs on them by
        (I − Hᵢᵢ)⁻¹eᵢ, where eᵢ are the residuals of the fit with them. A dual fit may leave residuals of 10⁻¹⁰, of
        which a difference from one keeps no digit: there I − H = U·λ(s + λ)⁻¹·Uᵀ − 11ᵀ/n.
        """
        if self.dual:
            left = self.vectors * (strength / (self.eigenvalues + strength))  # n×n
            residual = left @ (self.vectors.T @ x)
            blocks = left.unflatten(0, (-1, draws)) @ self.vectors.unflatten(0, (-1, draws)).mT
        else:
            shrunk = self.scores / (self.eigenvalues + strength)  # n×r
            residual = x - shrunk @ (self.scores.T @ x)
            fitted = shrunk.unflatten(0, (-1, draws)) @ self.scores.unflatten(0, (-1, draws)).mT
            blocks = torch.eye(draws, dtype=x.dtype, device=x.device) - fitted
        residual = residual.unflatten(0, (-1, draws))
        return residual, torch.linalg.solve_ex(blocks - 1 / len(x), residual).result

    def solve(self, z: Tensor, x: Tensor, strength: float) -> dict[str, Tensor]:
        """The weights W (D×P) at one strength, or the factors of W = Zᵀ·A when those are smaller."""
        if not self.dual:
            return {"weights": (self.vectors @ ((self.scores.T @ x) / (self.eigenvalues + strength)[:, None])).float()}
        coefficients = self.vectors @ ((self.vectors.T @ x) / (self.eigenvalues + strength)[:, None])  # n×P
        rows, columns, pixels = len(z), z.shape[1], x.shape[1]
        if columns * pixels > max(_WEIGHT_ELEMENTS, rows * (columns + pixels)):
            return {"rows": z.float(), "coefficients": coefficients.float()}
        return {"weights": (z.T @ coefficients).float()}
