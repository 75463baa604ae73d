"""The linear inverter: the best affine map from released features to pixels, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._release import PublicReleases, child
from leakscope.attacks._sights import FARTHEST, feature_scale
from leakscope.attacks._spectrum import Spectrum, sketched
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.devices import brought, widened
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, View


@ATTACKS.register("ridge", revision=3)
@dataclass(frozen=True)
class Ridge(Attack):
    """Affine ridge regression from released features to pixels, fitted on the attacker's own queries.

    x̂ = x̄ + Wᵀ(z − z̄), W = argmin Σ‖xᵢ − x̄ − Wᵀ(zᵢ − z̄)‖² + λ‖W‖², with every feature scaled to
    deviation one (a channel may hold one loud row) and λ = strength × mean eigenvalue of the Gram
    matrix. One eigendecomposition, of the smaller of ZᵀZ and ZZᵀ, serves every strength; the one with
    the least leave-one-picture-out error wins. A random release is drawn `draws` times for each
    picture, and all draws of a picture are left out together.

    Hoerl & Kennard, "Ridge regression", 1970; leave-one-out in closed form: Allen, "PRESS", 1974.
    """

    strengths: tuple[float, ...] = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    draws: int = 4
    largest: int = 2500  # side of the largest system solved; with more features than this, it caps the rows

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.QUERY})
    keep_prepared: ClassVar[bool] = False  # a matrix of features × pixels: 200 MB where the fit takes seconds
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
        # Features come in single precision; their Gram matrix needs twice the digits.
        z = widened(features).flatten(1)
        scale = feature_scale(z)
        z = z / scale
        center, mean = z.mean(0), widened(pixels).mean(0)
        z = z - center
        x = (widened(pixels) - mean).repeat_interleave(draws, 0)

        fit = Spectrum.of(z)
        sketch = sketched(x, child(rng, x.device))
        level = float(fit.eigenvalues.mean()) or 1.0  # features that never vary: any strength gives the mean picture
        strengths = [strength * level for strength in self.strengths]
        errors = fit.left_out_errors(sketch, strengths, draws)
        best = min(range(len(errors)), key=errors.__getitem__)
        tensors = {"scale": scale, "center": center, "mean": mean.float()}
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
        learnt = {name: brought(tensor, view.device) for name, tensor in prepared.tensors.items()}
        images = learnt["mean"].expand(len(seen), -1)
        if "scale" in learnt:
            features = widened(seen.features.to(view.device)).flatten(1)
            z = (features / learnt["scale"] - learnt["center"]).clamp(-FARTHEST, FARTHEST).to(learnt["mean"])
            if "weights" in learnt:
                images = images + z @ learnt["weights"]
            else:
                images = images + (z @ learnt["rows"].T) @ learnt["coefficients"]
        images = images.reshape(len(seen), *view.image_shape)
        if view.public.pixels:
            images = images.clamp(0, 1)
        return Reconstruction(images.contiguous(), prepared.diagnostics)
