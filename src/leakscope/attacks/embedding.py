"""Embedding inversion: the regularised picture with the features seen, by gradient descent through the network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._memory import at_once
from leakscope.attacks._observed import checked_features
from leakscope.attacks._release import child
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.chunks import in_chunks
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, View
from leakscope.nn.curves import mean_curve, mean_where_finite

_CHUNK = 64
_POINTS = 20  # of the curve


@ATTACKS.register("embedding")
@dataclass(frozen=True)
class EmbeddingInversion(Attack):
    """Finds the smooth picture whose features match, started at faint noise.

    min_u ‖Φ(½ + ¼u) − Φ₀‖² / ‖Φ₀‖² + λ_α Σ|u|^α + λ_V Σ[(u_{i,j+1} − u_{ij})² + (u_{i+1,j} − u_{ij})²]^{β/2}

    with α = 6 and β = 2. Mahendran and Vedaldi, "Understanding deep image representations by inverting
    them", CVPR 2015; PEEL uses it for the shallow layers and as its baseline.

    Differs from the paper: Adam with a cosine schedule instead of momentum with step decay; weights are
    not divided by a mean picture norm.
    """

    steps: int = 500
    learning_rate: float = 0.05
    alpha_weight: float = 1e-6
    tv_weight: float = 1e-6
    alpha: float = 6.0

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.FEATURES})
    white_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or self.alpha < 1:
            raise ValueError("steps must be 0 or more, alpha 1 or more")
        if self.learning_rate <= 0:
            raise ValueError("learning_rate must be positive, such as 0.05")
        if min(self.alpha_weight, self.tv_weight) < 0:
            raise ValueError("alpha_weight and tv_weight are weights of penalties: 0 or more")

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        noise = child(rng, view.device)
        features = checked_features(view, seen, "embedding")
        solved = in_chunks(
            lambda chunk: self.invert(view.encoder, chunk, view.image_shape, noise),
            features, size=at_once(view, _CHUNK, kept=8), what="embedding", rngs=(noise,),
        )  # fmt: skip
        parts = list(solved)
        images = torch.cat([images for images, _, _ in parts])
        finite = torch.cat([finite for _, finite, _ in parts])
        curve = mean_curve([curve for _, _, curve in parts])
        found = Diagnostics(curve=curve, diverged=float((~finite).float().mean()))
        return Reconstruction(images.clamp(0, 1), found)

    def invert(
        self,
        network: Callable[[Tensor], Tensor],
        target: Tensor,
        image_shape: tuple[int, int, int],
        rng: torch.Generator,
    ) -> tuple[Tensor, Tensor, list[float]]:
        """Pictures (not clipped), which rows stayed finite, and the objective as steps grow (NaN: no row is finite)."""
        # At grey itself a ReLU network without biases has no gradient.
        noise = torch.randn(len(target), *image_shape, generator=rng, dtype=target.dtype, device=target.device)
        u = (0.1 * noise).requires_grad_()
        kept = u.detach().clone()
        finite = torch.ones(len(target), dtype=torch.bool, device=target.device)
        scale = target.flatten(1).square().sum(1).clamp_min(torch.finfo(target.dtype).tiny)
        optimizer = torch.optim.Adam([u], self.learning_rate)
        curve: list[Tensor] = []
        for step in range(self.steps):
            optimizer.param_groups[0]["lr"] = self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.steps))
            with torch.enable_grad():
                value = (network(0.5 + 0.25 * u) - target).flatten(1).square().sum(1) / scale + self._prior(u)
                (gradient,) = torch.autograd.grad(value.sum(), u)
            finite &= value.isfinite() & gradient.flatten(1).isfinite().all(1)
            kept = torch.where(finite.view(-1, 1, 1, 1), u.detach(), kept)
            if step % max(1, self.steps // _POINTS) == 0:
                curve.append(mean_where_finite(value.detach()))
            u.grad = torch.where(finite.view(-1, 1, 1, 1), gradient, 0.0)
            optimizer.step()
        final = torch.where((finite & u.isfinite().flatten(1).all(1)).view(-1, 1, 1, 1), u.detach(), kept)
        return 0.5 + 0.25 * final, finite, torch.stack(curve).tolist() if curve else []

    def _prior(self, u: Tensor) -> Tensor:
        # With β = 2 the total variation is the plain sum of squared differences.
        across, down = (u[..., :, 1:] - u[..., :, :-1]), (u[..., 1:, :] - u[..., :-1, :])
        variation = across.square().flatten(1).sum(1) + down.square().flatten(1).sum(1)
        return self.alpha_weight * u.abs().pow(self.alpha).flatten(1).sum(1) + self.tv_weight * variation
