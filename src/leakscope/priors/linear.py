"""Principal components: the prior without a GAN."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.devices import widened
from leakscope.core.prior import PRIORS, Generator, Material, Prior, PriorState
from leakscope.priors._pictures import fitting, require_size

_EXACT = 1024  # rows or columns up to which the decomposition is complete
_SPARE = 16  # directions beyond those asked for, which speed convergence up
_ROUNDS = 12


@PRIORS.register("linear")
@dataclass(frozen=True)
class Linear(Prior):
    """Pictures as the mean plus Gaussian amounts of the leading principal components.

    G(z) = clip(x̄ + Σ_k z_k σ_k u_k), z ~ N(0, I), with u_k, σ_k² the eigenvectors and eigenvalues of the
    public pictures' covariance. The latent of a picture is closed form, z_k = u_k·(x − x̄)/σ_k, and a
    picture's implausibility is its share of the Gaussian's negative log density, mean_k z_k²/2. There are at most
    `components` of them: fewer where pictures have fewer pixels, or are fewer.

    Turk & Pentland, "Eigenfaces for recognition", 1991.
    """

    components: int = 64
    size: int | None = None  # of the pictures; None: that of the public ones

    def __post_init__(self) -> None:
        if self.components < 1:
            raise ValueError(f"components must be 1 or more, not {self.components}")

    def require(self, shape: tuple[int, int, int]) -> None:
        require_size(self.kind_name, self.size, shape)

    def learn(self, given: Material) -> PriorState:
        rows = fitting(self, given.public).flatten(1).to(given.device)
        mean = rows.mean(0)
        count = min(self.components, rows.shape[1], len(rows) - 1)
        deviations, directions = principal(rows - mean, count, given.rng)
        explained = float(deviations.square().sum() / rows.var(0).sum().clamp_min(1e-12))
        tensors = {"mean": mean, "deviations": deviations, "directions": directions}
        return PriorState(tensors, {"shape": list(given.public.shape), "explained": explained})

    def generator(self, state: PriorState, device: torch.device) -> Generator:
        return LinearGenerator(state.shape, state.tensors).to(device).eval()


class LinearGenerator(Generator):
    """Mean, deviations (K) and directions (K×pixels, orthonormal rows)."""

    mean: Tensor
    deviations: Tensor
    directions: Tensor

    def __init__(self, shape: tuple[int, int, int], tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.shape, self.latent = shape, len(tensors["deviations"])
        for name in ("mean", "deviations", "directions"):
            self.register_buffer(name, tensors[name].clone())

    def decode(self, z: Tensor) -> Tensor:
        pixels = self.mean + (z * self.deviations) @ self.directions
        return pixels.view(-1, *self.shape).clamp(0, 1)

    def encode(self, images: Tensor) -> Tensor:
        """The latent whose picture is nearest."""
        return (images.flatten(1) - self.mean) @ self.directions.T / self.deviations

    def implausibility(self, images: Tensor) -> Tensor:
        return self.encode(images).square().mean(1) / 2


def principal(centred: Tensor, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Leading standard deviations (count) and directions (count×d) of centred rows (n×d), largest first.

    Small problems are solved completely. Larger ones by subspace iteration: Q ← orth(XᵀXQ) from a
    random start, whose error in direction k falls as (λ_spare/λ_k) a round.
    """
    n, d = centred.shape
    if min(n, d) <= _EXACT:
        _, singular, right = torch.linalg.svd(widened(centred), full_matrices=False)
        singular, right = singular[:count], right[:count]
    else:
        basis = torch.randn(d, count + _SPARE, generator=rng, device=rng.device).to(centred.device)
        for _ in range(_ROUNDS):
            basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
        _, singular, inner = torch.linalg.svd(widened(centred @ basis), full_matrices=False)
        singular, right = singular[:count], inner[:count] @ widened(basis).T
    # A direction and its negative are the same; fix the sign so that equal data give equal tensors.
    strongest = right.gather(1, right.abs().argmax(1, keepdim=True))
    deviations = (singular / (n - 1) ** 0.5).clamp_min(1e-6)  # constant pictures: no division by zero
    return deviations.to(centred), (right * strongest.sign()).to(centred).contiguous()
