"""Peels a residual network block by block with exact solvers, to the precision of its arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from leakscope.attacks._memory import at_once
from leakscope.attacks._observed import checked_features, explainable, noise_level, release_error
from leakscope.attacks._pictures import PictureSpace
from leakscope.attacks._release import child
from leakscope.attacks.e2e_lbfgs import EndToEnd, natural_energy
from leakscope.attacks.peeling.chain import Block, Chain
from leakscope.attacks.peeling.invert import Injectivity, Inverse, injectivity, invert
from leakscope.attacks.peeling.krylov import cgls, norm
from leakscope.attacks.peeling.pieces import Affine
from leakscope.attacks.peeling.take_apart import take_apart, why_not
from leakscope.attacks.peeling.whole import Whole, measured_scale
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.chunks import in_chunks
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, Encoder, View
from leakscope.nn.curves import mean_where_finite

_CHUNK = 16
_KRYLOV_KEPT = 60
_GROWN = 64  # units of precision: a picture that explains the features less closely has gathered errors of blocks
_FAR = 1e-3  # relative fit after Newton's method from which on a picture is looked for through the whole network
_NOT_INVERTED = 0.01  # relative fit of a block above which its solve counts as failed …
_ODD = 1.0  # … and above which it explains no more than zeros do


@ATTACKS.register("peel-exact", revision=2)
@dataclass(frozen=True)
class PeelExact(Attack):
    """Inverts each block by its piecewise linearity, from the deepest, then the shallow layers.

    x_{ℓ−1} with `W_s x + W_2 act(W_1 x) = x_ℓ`: fixed point with Anderson mixing, then Newton on the sign
    pattern (`peeling.invert`). Shallow layers are one linear least-squares problem if they are affine, and a
    smooth-picture problem (`e2e-lbfgs`) if they are not, or lose dimensions.

    The tolerance grows by `tolerance` a block: a block cannot be fitted closer than the error it
    inherits. Where branches do not contract, these errors grow from block to block, and a block may fold. The
    picture is then finished by Newton steps on the signs of the whole network, whose features outnumber its
    pixels, and looked for by `e2e-lbfgs` if they do not lead there. With a noisy release each block is solved with
    the ridge that its noise calls for, and what the noise becomes is followed from block to block.

    Threat and task of Arif et al., "PEEL the layers and find yourself", 2025; the fixed point is that of
    Behrmann et al., "Invertible residual networks", 2019.
    """

    tolerance: float | None = None  # per block; None: six units of the arithmetic's precision
    dense_rank_limit: int = 512  # ranks of blocks with at most so many inputs are computed, others bounded
    shallow_iterations: int = 200

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.FEATURES})
    white_box: ClassVar[bool] = True
    #: E‖F(x) + noise − y‖² is ‖F(x) − y‖² and a constant: for noise that is added, the mean is taken exactly.
    averages_noise: ClassVar[bool] = True
    control: ClassVar[str] = "residual"

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
        images, failed, unexplained, table = [], [], [], _Table()
        finished = 0

        def undone(y: Tensor) -> tuple[_Peeled, Tensor, Tensor, int]:
            peeled, count = self._peel(chain, y, noise, generator), 0
            pictures, fit = self._shallow(chain, peeled.x, peeled.noise, view.image_shape, generator)
            if not peeled.lossy and y[0].numel() >= pictures[0].numel():
                pictures, count = _finished(chain, y, pictures, generator, noise)
            return peeled, pictures, fit, count

        # Anderson mixing, Krylov bases and L-BFGS hold dozens of tensors as large as a picture.
        size = at_once(view, _CHUNK, kept=2 * _KRYLOV_KEPT)
        solved = in_chunks(undone, features, size=size, what="peel-exact", rngs=(generator,))
        for peeled, pictures, fit, count in solved:
            finished += count
            table.add(peeled)
            mean, worst = torch.stack([mean_where_finite(fit), fit.max()]).tolist()
            table.rows["shallow"] = {"fit": mean if math.isfinite(mean) else None, "worst": worst}
            images.append(pictures.clamp(0, 1))
            failed.append(peeled.failed | ~fit.isfinite())
            unexplained.append(peeled.unexplained | ~(fit <= explainable(peeled.x, peeled.noise)))
        diverged, left = torch.stack([torch.cat(part).float().mean() for part in (failed, unexplained)]).tolist()
        found = Diagnostics(
            diverged=diverged,
            diverged_blocks=tuple(table.failed),
            unexplained=left,
            unexplained_blocks=tuple(table.unexplained),
            lost_dimensions={name: row["deficiency"] for name, row in table.rows.items() if row.get("deficiency")},
            details={
                "blocks": {name: _plain(row) for name, row in table.rows.items()},
                "release_error": noise,
                "finished": finished,
            },
        )
        return Reconstruction(torch.cat(images), found)

    @torch.no_grad()
    def block_inputs(self, view: View, seen: Observed, rng: torch.Generator) -> dict[str, Tensor]:
        """What the attack takes each block to have read, by the block's name, the deepest first."""
        features = checked_features(view, seen, "peel-exact")
        assert isinstance(view.encoder, Encoder)
        chain = take_apart(view.encoder.split, view.image_shape)
        peeled = self._peel(chain, features, release_error(view, rng), child(rng, view.device))
        return {step.block.name: step.inverse.x for step in peeled.steps}

    def _peel(self, chain: Chain, y: Tensor, noise: float, rng: torch.Generator) -> _Peeled:
        """Every block from the deepest on; noise is followed from output to input."""
        unit = self.tolerance if self.tolerance is not None else 6 * torch.finfo(y.dtype).eps
        none = torch.zeros(len(y), dtype=torch.bool, device=y.device)
        peeled = _Peeled(y, noise, none, none)
        for depth, block in enumerate(reversed(chain.blocks), 1):
            allowed = explainable(peeled.x, peeled.noise)
            level = noise_level(peeled.x, peeled.noise)
            # What an earlier block left is finite: see below.
            inverse = invert(block, peeled.x, tolerance=unit * depth, noise=peeled.noise, finite=depth > 1)
            finite = inverse.x.flatten(1).isfinite().all(1)
            inverse.x = torch.where(finite.view(-1, *(1 for _ in block.inputs)), inverse.x, 0.0)
            measured = injectivity(block, inverse.x, dense_limit=self.dense_rank_limit)
            # Behind a block that loses dimensions the input is one of many: nothing promises that the blocks
            # before it can reach it, so a bad fit there tells of the network, not of the solver.
            limit = _ODD if peeled.lossy else max(_NOT_INVERTED, 3 * level)
            peeled.add(_Step(block, inverse, measured, ~(inverse.fit <= limit), ~(inverse.fit <= allowed)))
            if peeled.noise > 0:
                peeled.noise = _noise_behind(block, peeled.x, peeled.noise, rng)
        return peeled

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


@torch.no_grad()
def _finished(chain: Chain, y: Tensor, pictures: Tensor, rng: torch.Generator, noise: float) -> tuple[Tensor, int]:
    """Rows whose errors have grown, brought to their end through the whole network; and how many those were.

    With a noisy release these are all rows: features that outnumber pixels average the noise.
    """
    size, eps = norm(y).clamp_min(torch.finfo(y.dtype).tiny), torch.finfo(y.dtype).eps
    fit = norm(chain(pictures) - y) / size
    grown = (~(fit <= (0.0 if noise > 0 else _GROWN * eps))).nonzero().flatten()
    if len(grown) == 0:
        return pictures, 0
    target, attack = y[grown], EndToEnd()
    channels, height, width = pictures.shape[1:]
    space = PictureSpace((channels, height, width), attack.epsilon, attack.chroma, y)
    problem = Whole(chain, target, space, measured_scale(chain, space, y, rng))
    start = space.coordinates(pictures[grown].nan_to_num(0.5, 1.0, 0.0))
    if noise > 0:
        likely = replace(problem, weight=problem.scale * noise**2 / natural_energy(space))
        pictures = pictures.clone()
        pictures[grown] = space.pixels(likely.newton(start, steps=4, products=60))
        return pictures, len(grown)
    found = space.pixels(problem.newton(start, steps=8, products=80, close=eps))
    left = norm(chain(found) - target) / size[grown]
    far = (~(left <= _FAR)).nonzero().flatten()
    if len(far):
        other = attack.fit(chain, target[far], (channels, height, width), rng)
        closer = other.fit < left[far]
        found[far[closer]] = other.images[closer]
    pictures = pictures.clone()
    better = norm(chain(found) - target) / size[grown] < fit[grown].nan_to_num(torch.inf)
    pictures[grown[better]] = found[better]
    return pictures, len(grown)


@torch.no_grad()
def block_inputs(split: SplitModel, images: Tensor, *, plain_layers: bool = False) -> dict[str, Tensor]:
    """What the residual blocks in front of the cut read for these pictures, the first block first."""
    channels, height, width = images.shape[1:]
    return take_apart(split, (channels, height, width), plain_layers=plain_layers).block_inputs(images)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


@dataclass(frozen=True)
class _Step:
    """One block undone, and the rows for which that failed, or left the block's output unexplained."""

    block: Block
    inverse: Inverse
    measured: Injectivity
    failed: Tensor
    unexplained: Tensor


@dataclass
class _Peeled:
    """A batch on its way through the blocks: the input of the last one undone, and what went wrong so far."""

    x: Tensor
    noise: float
    failed: Tensor
    unexplained: Tensor
    steps: list[_Step] = field(default_factory=list)
    lossy: bool = False

    def add(self, step: _Step) -> None:
        self.failed = self.failed | step.failed
        self.unexplained = self.unexplained | step.unexplained
        self.lossy |= step.measured.deficiency > 0
        self.x = step.inverse.x
        self.steps.append(step)


class _Table:
    """One row per block: fits of all chunks, the method, and what the block loses."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []
        self.unexplained: list[str] = []

    def add(self, peeled: _Peeled) -> None:
        told = [
            [_worst(s.inverse.fit), mean_where_finite(s.inverse.fit), s.failed.any(), s.unexplained.any()]
            for s in peeled.steps
        ]
        figures = (
            torch.stack([value.to(peeled.x) for row in told for value in row]).view(-1, 4).tolist() if told else []
        )
        for step, (worst, mean, failed, unexplained) in zip(peeled.steps, figures, strict=True):  # read in one wait
            name, inverse = step.block.name, step.inverse
            worst = max(worst, self.rows.get(name, {}).get("worst") or 0.0)
            measured = step.measured.__dict__ | {"deficiency": step.measured.deficiency}
            fit = mean if math.isfinite(mean) else None
            self.rows[name] = {"method": inverse.method, "fit": fit, "worst": worst, **measured}
            for happened, names in ((failed, self.failed), (unexplained, self.unexplained)):
                if happened and name not in names:
                    names.append(name)


def _worst(fit: Tensor) -> Tensor:
    return fit.nan_to_num(torch.inf).max()


def _noise_behind(block: Block, x: Tensor, noise: float, rng: torch.Generator) -> float:
    """What noise of this size in the output becomes in the input: a random one, pulled through the Jacobian."""
    s, jacobian = block.linearise(x)
    sample = noise * torch.randn(s.shape, generator=rng, dtype=s.dtype, device=s.device)
    spread = max(float(x.square().mean()), noise**2)
    step = cgls(jacobian, sample, iterations=30, tolerance=1e-2, damping=noise**2 / spread)
    return float(step.square().mean() ** 0.5)
