"""Peels a residual network block by block with exact solvers, to the precision of its arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from leakscope.attacks._blocks import take_apart, why_not
from leakscope.attacks._chain import Block, Chain
from leakscope.attacks._invert import Inverse, injectivity, invert
from leakscope.attacks._krylov import cgls
from leakscope.attacks._observed import checked_features, release_error
from leakscope.attacks._pieces import Affine
from leakscope.attacks._release import child
from leakscope.attacks.e2e_lbfgs import EndToEnd
from leakscope.attacks.embedding import mean_finite
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, Encoder, View

_CHUNK = 16
_NOT_INVERTED = 0.01  # relative fit of a block above which its solve counts as failed


@ATTACKS.register("peel-exact")
@dataclass(frozen=True)
class PeelExact(Attack):
    """Inverts each block by its piecewise linearity, from the deepest, then the shallow layers.

    x_{ℓ−1} with `W_s x + W_2 act(W_1 x) = x_ℓ`: fixed point with Anderson mixing, then Newton on the sign
    pattern (`_invert`). Shallow layers are one linear least-squares problem if they are affine, and a
    smooth-picture problem (`e2e-lbfgs`) if they are not, or lose dimensions.

    The tolerance grows by `tolerance` a block: a block cannot be fitted closer than the error it
    inherits. With a noisy release each block is solved with the ridge that its noise calls for, and what
    the noise becomes is followed from block to block.

    Threat and task of Arif et al., "PEEL the layers and find yourself", 2025; the fixed point is that of
    Behrmann et al., "Invertible residual networks", 2019.
    """

    tolerance: float | None = None  # per block; None: six units of the arithmetic's precision
    dense_rank_limit: int = 512  # ranks of blocks with at most so many inputs are computed, others bounded
    shallow_iterations: int = 200

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.FEATURES})
    white_box: ClassVar[bool] = True
    peels_blocks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tolerance is not None and self.tolerance <= 0:
            raise ValueError("tolerance must be positive, or null for six units of the arithmetic's precision")
        if self.dense_rank_limit < 0 or self.shallow_iterations < 1:
            raise ValueError("dense_rank_limit must be 0 or more, shallow_iterations 1 or more")

    @torch.no_grad()
    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        return why_not(split, image_shape)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        features = checked_features(view, seen, "peel-exact")
        assert isinstance(view.encoder, Encoder)
        chain = take_apart(view.encoder.split, view.image_shape)
        noise = release_error(view, rng)
        generator = child(rng, view.device)
        images, bad, table = [], [], _Table()
        for y in features.split(_CHUNK):
            pictures, failed = self._peel(chain, y, noise, view.image_shape, generator, table)
            images.append(pictures.clamp(0, 1))
            bad.append(failed)
        notes: dict[str, Any] = {
            "blocks": {name: _plain(row) for name, row in table.rows.items()},
            "release_error": noise,
            "diverged": float(torch.cat(bad).float().mean()),
            "diverged_blocks": table.failed,
            "lost_dimensions": {name: row["deficiency"] for name, row in table.rows.items() if row.get("deficiency")},
            "objective_low_is_good": True,
        }
        return Reconstruction(torch.cat(images), notes)

    def _peel(
        self,
        chain: Chain,
        y: Tensor,
        noise: float,
        image_shape: tuple[int, int, int],
        rng: torch.Generator,
        table: _Table,
    ) -> tuple[Tensor, Tensor]:
        unit = self.tolerance if self.tolerance is not None else 6 * torch.finfo(y.dtype).eps
        failed = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        for depth, block in enumerate(reversed(chain.blocks), 1):
            inverse = invert(block, y, tolerance=unit * depth, noise=noise)
            level = noise / max(float(y.square().mean()) ** 0.5, 1e-30)
            wrong = ~(inverse.fit <= max(_NOT_INVERTED, 3 * level))
            finite = inverse.x.flatten(1).isfinite().all(1)
            y = torch.where(finite.view(-1, *(1 for _ in block.inputs)), inverse.x, 0.0)
            failed |= wrong
            measured = injectivity(block, y, dense_limit=self.dense_rank_limit)
            table.add(block.name, inverse, wrong, measured.__dict__ | {"deficiency": measured.deficiency})
            if noise > 0:
                noise = _noise_behind(block, y, noise, rng)
        pictures, fit = self._shallow(chain, y, noise, image_shape, rng)
        table.rows["shallow"] = {"fit": float(fit.mean()), "worst": float(fit.max())}
        return pictures, failed | ~fit.isfinite()

    def _shallow(
        self, chain: Chain, y: Tensor, noise: float, image_shape: tuple[int, int, int], rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        alone = Chain(chain.shallow, ())
        inputs, outputs = chain.shallow.sizes
        if noise == 0 and outputs >= inputs and all(isinstance(piece, Affine) for piece in chain.shallow.branch):
            grey = y.new_full((len(y), *image_shape), 0.5)
            s, jacobian = alone.linearise(grey)
            step = cgls(jacobian, y - s, iterations=self.shallow_iterations, tolerance=torch.finfo(y.dtype).eps)
            pictures = grey + step
            fit = (alone(pictures) - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1).clamp_min(1e-30)
            return pictures, fit
        found = EndToEnd(iterations=self.shallow_iterations).fit(alone, y, image_shape, rng, noise)
        return found.images, found.fit


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


class _Table:
    """One row a block: fits of all chunks, the method, and what the block loses."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []

    def add(self, name: str, inverse: Inverse, wrong: Tensor, measured: dict[str, Any]) -> None:
        worst = max(float(inverse.fit.nan_to_num(torch.inf).max()), self.rows.get(name, {}).get("worst") or 0.0)
        self.rows[name] = {"method": inverse.method, "fit": mean_finite(inverse.fit), "worst": worst, **measured}
        if bool(wrong.any()) and name not in self.failed:
            self.failed.append(name)


def _noise_behind(block: Block, x: Tensor, noise: float, rng: torch.Generator) -> float:
    """What noise of this size in the output becomes in the input: a random one, pulled through the Jacobian."""
    s, jacobian = block.linearise(x)
    sample = noise * torch.randn(s.shape, generator=rng, dtype=s.dtype, device=s.device)
    spread = max(float(x.square().mean()), noise**2)
    step = cgls(jacobian, sample, iterations=30, tolerance=1e-2, damping=noise**2 / spread)
    return float(step.square().mean() ** 0.5)
