"""The linear inverter: the best affine map from released features to pixels, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._release import PublicReleases, channel_statistics, child
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, View

_SKETCH = 64  # target columns that leave-one-out looks at
_WEIGHT_ELEMENTS = 2**26  # above this the weight matrix stays in two factors


@ATTACKS.register("ridge")
@dataclass(frozen=True)
class Ridge(Attack):
    """Affine ridge regression from released features to pixels, fitted on the attacker's own queries.

    x̂ = x̄ + Wᵀ(z − z̄), W = argmin Σ‖xᵢ − x̄ − Wᵀ(zᵢ − z̄)‖² + λ‖W‖², with features scaled per
    channel and λ = strength × mean eigenvalue of the Gram matrix. One eigendecomposition, of the
    smaller of ZᵀZ and ZZᵀ, serves every strength; the one with the least leave-one-picture-out
    error wins. A random release is drawn `draws` times for each picture, and all draws of a picture
    are left out together.

    Hoerl & Kennard, "Ridge regression", 1970; leave-one-out in closed form: Allen, "PRESS", 1974.
    """

    strengths: tuple[float, ...] = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    draws: int = 4
    largest: int = 2500  # side of the largest system solved; with more features than this, it caps the rows

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.QUERY})
    linear: ClassVar[bool] = True
    averages_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.strengths or min(self.strengths) <= 0:
            raise ValueError("strengths must be one or more positive numbers, such as (1e-4, 1e-2)")
        if self.draws < 1 or self.largest < 2:
            raise ValueError("draws must be at least 1 and largest at least 2")

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        releases = PublicReleases(view, rng)
        if len(releases) < 2:
            return Prepared({"mean": view.public.images.mean(0).flatten()}, Diagnostics(details={"rows": 0}))
        features, pixels = self._rows(releases)
        draws = len(features) // len(pixels)
        _, scale = channel_statistics(features)
        scale = scale.expand_as(features[:1]).flatten()  # D
        # Features come in single precision; their Gram matrix needs twice the digits.
        z = (features.flatten(1) / scale).double()
        center, mean = z.mean(0), pixels.double().mean(0)
        z = z - center
        x = (pixels.double() - mean).repeat_interleave(draws, 0)

        fit = _Spectrum.of(z)
        sketch = _sketch(x, child(rng, view.device))
        level = float(fit.eigenvalues.mean()) or 1.0  # features that never vary: any strength gives the mean picture
        strengths = [strength * level for strength in self.strengths]
        errors = [fit.left_out_error(sketch, strength, draws) for strength in strengths]
        best = min(range(len(errors)), key=errors.__getitem__)
        tensors = {"scale": scale, "center": center.float(), "mean": mean.float()}
        tensors |= fit.solve(z, x, strengths[best])
        return Prepared(
            tensors,
            Diagnostics(
                details={
                    "strength": self.strengths[best],
                    "left_out_mse": errors[best] / x.shape[1],
                    "rows": len(z),
                    "draws": draws,
                }
            ),
        )

    def _rows(self, releases: PublicReleases) -> tuple[Tensor, Tensor]:
        """Released features, all draws of a picture side by side, and the pixels of each picture."""
        first = releases.draw(torch.arange(1))
        wide = first.numel() > self.largest
        count = min(len(releases), self.largest) if wide else len(releases)
        draws = 1 if not releases.random else min(self.draws, max(1, self.largest // count)) if wide else self.draws
        index = torch.arange(count)
        released = torch.stack([torch.cat([releases.draw(i) for i in index.split(256)]) for _ in range(draws)], 1)
        return released.flatten(0, 1), releases.images(index).flatten(1)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del rng
        if seen.features is None:
            raise ValueError("ridge rebuilds observed inputs; it was handed no features")
        learnt = {name: tensor.to(view.device) for name, tensor in prepared.tensors.items()}
        images = learnt["mean"].expand(len(seen), -1)
        if "scale" in learnt:
            z = seen.features.to(view.device).flatten(1) / learnt["scale"] - learnt["center"]
            if "weights" in learnt:
                images = images + z @ learnt["weights"]
            else:
                images = images + (z @ learnt["rows"].T) @ learnt["coefficients"]
        images = images.reshape(len(seen), *view.image_shape)
        if view.public.pixels:
            images = images.clamp(0, 1)
        return Reconstruction(images.contiguous(), prepared.diagnostics)


def _sketch(targets: Tensor, rng: torch.Generator) -> Tensor:
    """A few random combinations of the target columns, whose squared error is that of all in expectation."""
    columns = targets.shape[1]
    if columns <= _SKETCH:
        return targets
    mix = torch.randn(columns, _SKETCH, generator=rng, device=targets.device, dtype=targets.dtype)
    sketch: Tensor = targets @ (mix / _SKETCH**0.5)
    return sketch


@dataclass(frozen=True)
class _Spectrum:
    """Centred rows Z (n×D) as Z = T·Vᵀ with TᵀT = diag(eigenvalues): every ridge fit shares it.

    Primal (D ≤ n): V diagonalises ZᵀZ and T = ZV. Dual (D > n): ZZᵀ = U·diag(s)·Uᵀ, T = U·√s.
    """

    eigenvalues: Tensor  # r
    scores: Tensor  # T, n×r
    vectors: Tensor  # V (D×r) in the primal, U (n×r) in the dual
    dual: bool

    @classmethod
    def of(cls, z: Tensor) -> _Spectrum:
        rows, columns = z.shape
        dual = columns > rows
        eigenvalues, vectors = torch.linalg.eigh(z @ z.T if dual else z.T @ z)
        eigenvalues = eigenvalues.clamp_min(0)
        scores = vectors * eigenvalues.sqrt() if dual else z @ vectors
        return cls(eigenvalues, scores, vectors, dual)

    def left_out_error(self, x: Tensor, strength: float, draws: int) -> float:
        """Mean over rows of the squared error when all draws of a picture are left out.

        With H = 11ᵀ/n + T(s + λ)⁻¹Tᵀ, the fit without the rows of picture i errs on them by
        (I − Hᵢᵢ)⁻¹eᵢ, where eᵢ are the residuals of the fit with them.
        """
        rows = len(x)
        shrunk = self.scores / (self.eigenvalues + strength)  # n×r
        residual = x - shrunk @ (self.scores.T @ x)
        blocks = shrunk.unflatten(0, (-1, draws)) @ self.scores.unflatten(0, (-1, draws)).mT + 1 / rows
        identity = torch.eye(draws, dtype=x.dtype, device=x.device)
        left_out = torch.linalg.solve(identity - blocks, residual.unflatten(0, (-1, draws)))
        return float(left_out.square().sum() / rows)

    def solve(self, z: Tensor, x: Tensor, strength: float) -> dict[str, Tensor]:
        """The weights W (D×P) at one strength, or the factors of W = Zᵀ·A when those are smaller."""
        if not self.dual:
            return {"weights": (self.vectors @ ((self.scores.T @ x) / (self.eigenvalues + strength)[:, None])).float()}
        coefficients = self.vectors @ ((self.vectors.T @ x) / (self.eigenvalues + strength)[:, None])  # n×P
        rows, columns, pixels = len(z), z.shape[1], x.shape[1]
        if columns * pixels > max(_WEIGHT_ELEMENTS, rows * (columns + pixels)):
            return {"rows": z.float(), "coefficients": coefficients.float()}
        return {"weights": (z.T @ coefficients).float()}
