"""Whole-network inversion in a space of smooth pictures: what breaks networks that no block can be peeled off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._memory import at_once
from leakscope.attacks._observed import checked_features, explainable, release_error
from leakscope.attacks._pictures import PictureSpace
from leakscope.attacks._release import child
from leakscope.attacks.peeling.chain import Block, Chain
from leakscope.attacks.peeling.invert import invert
from leakscope.attacks.peeling.krylov import norm
from leakscope.attacks.peeling.lbfgs import minimise
from leakscope.attacks.peeling.lbfgs_rules import WINDOW
from leakscope.attacks.peeling.pieces import Smooth
from leakscope.attacks.peeling.shortcuts import has_shortcuts
from leakscope.attacks.peeling.take_apart import take_apart
from leakscope.attacks.peeling.whole import Whole, measured_scale
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.chunks import in_chunks
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, Encoder, View
from leakscope.nn.curves import mean_of_finite, thinned

_CHUNK = 16
_STAGE = 50  # iterations with each weight but the last
_GAIN = 0.05  # a window of the last descent that gains a smaller share ends it for a row
_HALVES = 0.5  # of the objective must go with a Newton step, or L-BFGS does more for the same price
_GREYS = (0.75, 0.25)  # further starts: light and dark
_STUCK = 0.05  # relative fit after the first stage that calls for another start …
_LEFT = 3e-3  # … and at the end, where features outnumber pixels and the last descent has not halved the objective
_PRODUCTS = 100  # of the Jacobian in a Newton step
_CLOSE = 3e-4  # relative fit at which Newton steps end: some 50 dB on networks that lose nothing
_SETTLED = 0.01  # of their variance may pictures have moved in the last doubling of iterations
_ODD = 1.0  # relative fit worse than explaining nothing


@dataclass
class Fitted:
    """Pictures (not clipped) and how well they explain the features."""

    images: Tensor
    fit: Tensor  # n, ‖F(x) − y‖ / ‖y‖
    moved: Tensor  # n, share of its variance by which a picture moved in the last half of the descent
    curve: list[float]
    restarted: int = 0  # rows that were begun again at the end


@ATTACKS.register("e2e-lbfgs", revision=3)
@dataclass(frozen=True)
class EndToEnd(Attack):
    """Finds the smooth picture whose features match, through the whole network at once.

    min_z s ‖F(½ + ¼ (Lap + ε)^{−1/2} z) − y‖² + λ ‖z‖²

    by L-BFGS, with s such that the mean of JᵀJ is one, and λ lowered in stages. Newton steps on the sign pattern
    (`peeling.whole`) follow for as long as each of them halves the objective, `gauss_newton` at the most; where they
    do not, because the features bend too much between here and there, L-BFGS goes on for the rest of its
    `iterations`, or until `WINDOW` of them gain little, and, where features outnumber pixels, Newton steps are tried
    once more.
    Trailing blocks that keep the dimension are first peeled off exactly. Pictures that explain little after the first
    stage are started again from light and dark grey, and those that leave features unexplained and have stopped
    gaining, although features outnumber pixels, from other starts. Where a release is noisy, λ is the most likely one
    for that noise, s σ²/τ² with τ² the mean square of z in natural pictures, and nothing is peeled.

    The objective is that of Mahendran and Vedaldi (2015) with a quadratic prior; the rest is ours
    (`docs/`, study B5).
    """

    iterations: int = 400
    memory: int = 40
    epsilon: float = 0.2
    chroma: float = 0.7
    prior_weights: tuple[float, ...] = (1e-3, 1e-5, 1e-7)
    gauss_newton: int = 5
    restarts: bool = True
    peel_trailing: bool = True

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.FEATURES})
    white_box: ClassVar[bool] = True
    #: E‖F(x) + noise − y‖² is ‖F(x) − y‖² and a constant: for noise that is added, the mean is taken exactly.
    averages_noise: ClassVar[bool] = True

    def redundant(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        if has_shortcuts(split, image_shape):
            return None
        return "the encoder has no shortcuts: auto and search solve the same problem with a better prior"

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.memory < 1 or self.gauss_newton < 0:
            raise ValueError("iterations and memory must be 1 or more, gauss_newton 0 or more")
        if min(self.epsilon, self.chroma) <= 0:
            raise ValueError("epsilon and chroma must be positive, such as 0.2 and 0.7")
        if not self.prior_weights or min(self.prior_weights) < 0:
            raise ValueError("prior_weights needs one weight or more, none negative, such as [1e-3, 1e-4, 1e-5]")

    @torch.no_grad()
    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        features = checked_features(view, seen, "e2e-lbfgs")
        assert isinstance(view.encoder, Encoder)
        try:
            chain = take_apart(view.encoder.split, view.image_shape)
        except UsageError:  # nothing to peel: the encoder as one piece is all that is needed
            whole = Block("encoder", (Smooth(view.encoder),), None, None, view.image_shape, tuple(features.shape[1:]))
            chain = Chain(whole, ())
        noise = release_error(view, rng)
        peeled: list[str] = []
        fits, images, curves, moves, restarted = [], [], [], [], 0

        def fitted(y: Tensor) -> tuple[Chain, Fitted]:
            shorter, target = (chain, y) if noise > 0 or not self.peel_trailing else _peel_trailing(chain, y)
            return shorter, self.fit(shorter, target, view.image_shape, child(rng, view.device), noise)

        size = at_once(view, _CHUNK, kept=2 * self.memory + 20)
        for shorter, found in in_chunks(fitted, features, size=size, what="e2e-lbfgs", rngs=(rng,)):
            peeled = [block.name for block in chain.blocks[len(shorter.blocks) :]]
            images.append(found.images.clamp(0, 1))
            fits.append(found.fit)
            moves.append(found.moved)
            curves.append(found.curve)
            restarted += found.restarted
        fit, moved = torch.stack([torch.cat(fits), torch.cat(moves)]).cpu()  # looked at below, more than once
        settled = float(moved.mean())
        length = max(len(curve) for curve in curves)
        padded = [curve + curve[-1:] * (length - len(curve)) for curve in curves]
        diagnosed = Diagnostics(
            converged=settled < _SETTLED,
            curve=tuple(thinned(torch.tensor(padded).clamp(max=1e30).mean(0).tolist())),
            diverged=float((~(fit < _ODD)).float().mean()),
            diverged_blocks=() if bool((fit < _ODD).all()) else ("whole network",),
            unexplained=float((~(fit <= explainable(features, noise))).float().mean()),
            details={
                "fit": mean_of_finite(fit),
                "worst_fit": float(fit.max()) if bool(fit.isfinite().all()) else None,
                "moved": settled if math.isfinite(settled) else None,
                "release_error": noise,
                "peeled": peeled,
                "restarted": restarted,
            },
        )
        return Reconstruction(torch.cat(images), diagnosed)

    def fit(
        self, network: Chain, y: Tensor, image_shape: tuple[int, int, int], rng: torch.Generator, noise: float = 0.0
    ) -> Fitted:
        """Pictures whose features under `network` are y."""
        space = PictureSpace(image_shape, self.epsilon, self.chroma, y)
        size = image_shape[0] * image_shape[1] * image_shape[2]
        problem = Whole(network, y, space, measured_scale(network, space, y, rng))
        weights = self.prior_weights
        if noise > 0:
            likely = problem.scale * noise**2 / natural_energy(space)
            weights = tuple(dict.fromkeys(max(weight, likely) for weight in weights))
        z = 0.1 * torch.randn(len(y), size, generator=rng, dtype=y.dtype, device=y.device)
        curve: list[float] = []
        exact = noise == 0 and y[0].numel() >= size
        z, still, moved = self._solved(problem, z, weights, curve, exact=exact)
        stuck = self._stuck(problem, z, still) if exact and self.restarts else z.new_empty(0, dtype=torch.int64)
        if len(stuck):
            z[stuck] = self._begun_again(problem.take(stuck), z[stuck], weights, rng)
        images = space.pixels(z)
        left = norm(network(images) - y) / norm(y).clamp_min(torch.finfo(y.dtype).tiny)
        usable = images.flatten(1).isfinite().all(1)
        images = torch.where(usable[:, None, None, None], images, 0.5)
        return Fitted(images, torch.where(usable, left, torch.inf), moved, curve, len(stuck))

    def _solved(
        self, problem: Whole, z: Tensor, weights: tuple[float, ...], curve: list[float], *, exact: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All stages from one start, which rows have stopped gaining, and how far each moved last; `curve` grows."""
        energy, stages = problem.energy(), weights[:-1] or weights
        most = max(1, min(_STAGE, self.iterations // (len(stages) + 1)))
        for number, weight in enumerate(stages):
            objective = replace(problem, weight=weight)
            found = minimise(objective, z, iterations=most, memory=self.memory)
            z, curve[len(curve) :] = found.x, [value / energy for value in found.curve[1:]]
            if number == 0:
                z = self._other_starts(objective, z, most)
        last = replace(problem, weight=weights[-1] / 10 if exact else weights[-1])
        if exact:  # else a step also fills what no feature tells of, and with signs still wrong that is noise
            z = self._newton(last, z)
        still, moved = torch.zeros(len(z), dtype=torch.bool, device=z.device), torch.zeros_like(z[:, 0])
        far = (~(last.misfit(z) <= _CLOSE)).nonzero().flatten()
        if len(far) == 0:
            return z, still, moved
        part, half = last.take(far), self.iterations // 2
        for length in (max(0, half - most * len(stages)), self.iterations - half):
            begun = z[far]
            before = part.value(begun)
            share = (_CLOSE / part.misfit(begun)).square()  # of the objective that is left when features are close
            found = minimise(part, begun, iterations=length, memory=self.memory, gain=_GAIN, solved=share)
            z[far], curve[len(curve) :] = found.x, [value / energy for value in found.curve[1:]]
            still[far] = ~(found.value <= _HALVES * before)
            # A few steps move little, and prove nothing by that.
            moved[far] = _distance(problem, begun, found.x) if length >= WINDOW else math.inf
        if problem.y[0].numel() >= z.shape[1]:
            z[far] = self._newton(part, z[far])
        moved = torch.where(last.misfit(z) <= _CLOSE, 0.0, moved)
        return z, still, moved

    def _newton(self, problem: Whole, z: Tensor) -> Tensor:
        return problem.newton(z, steps=self.gauss_newton, products=_PRODUCTS, close=_CLOSE, gains=(_HALVES, _HALVES))

    def _other_starts(self, objective: Whole, z: Tensor, most: int) -> Tensor:
        """Light and dark starts for the rows that are stuck; the best of the three by objective."""
        stuck = (objective.misfit(z) > _STUCK).nonzero().flatten()
        if len(stuck) == 0:
            return z
        part = objective.take(stuck)
        x, value = z[stuck], part.value(z[stuck]).nan_to_num(torch.inf)
        for grey in _GREYS:
            start = part.space.coordinates(torch.full_like(part.space.pixels(x), grey))
            other = minimise(part, start, iterations=most, memory=self.memory)
            better = other.value < value
            x, value = torch.where(better[:, None], other.x, x), torch.minimum(other.value, value)
        z = z.clone()
        z[stuck] = x
        return z

    def _stuck(self, problem: Whole, z: Tensor, still: Tensor) -> Tensor:
        """Rows that stopped where features stay unexplained, though there is a picture that explains them."""
        return (still & ~(problem.misfit(z) <= _LEFT)).nonzero().flatten()

    def _begun_again(self, problem: Whole, z: Tensor, weights: tuple[float, ...], rng: torch.Generator) -> Tensor:
        """Every row from its own picture made smooth, from light and dark grey and from noise; the best fit stays."""
        blurred = z * problem.space.low_pass()
        greys = [problem.space.coordinates(torch.full_like(problem.space.pixels(z), grey)) for grey in _GREYS]
        noise = torch.randn(z.shape, generator=rng, dtype=z.dtype, device=z.device)
        starts = torch.stack([blurred, *greys, noise])
        again = torch.arange(len(z), device=z.device).repeat(len(starts))
        many = problem.take(again)
        found, _, _ = self._solved(many, starts.flatten(0, 1), weights, [], exact=True)
        misfits = torch.cat([problem.misfit(z)[None], many.misfit(found).view(len(starts), -1)]).nan_to_num(torch.inf)
        choices = torch.cat([z[None], found.view(starts.shape)])
        best: Tensor = choices[misfits.argmin(0), torch.arange(len(z), device=z.device)]
        return best


def _distance(problem: Whole, before: Tensor, after: Tensor) -> Tensor:
    """How far pictures moved, as a share of their variance."""
    first, second = (problem.space.pixels(z).flatten(1) for z in (before, after))
    return (second - first).square().mean(1) / second.var(1).clamp_min(1e-12)


def _peel_trailing(chain: Chain, y: Tensor) -> tuple[Chain, Tensor]:
    """Take blocks that keep the dimension off the end, as long as every picture's inverse is exact."""
    tolerance = 4 * torch.finfo(y.dtype).eps
    while chain.blocks:
        last = chain.blocks[-1]
        if last.shortcut is None or last.shortcut.maps or not last.piecewise_linear:
            break
        if last.outer is not None and not last.outer.invertible:
            break
        inverse = invert(last, y, tolerance=tolerance)
        if not bool((inverse.fit < 20 * tolerance).all()):
            break
        chain, y = Chain(chain.shallow, chain.blocks[:-1]), inverse.x
    return chain, y


def natural_energy(space: PictureSpace) -> float:
    """The mean square of z for pictures whose pixel values and neighbour differences are natural.

    Pixels of standard deviation ¼ whose neighbours correlate as 0.95^distance.
    """
    height, width = space.shape[1:]
    matrices = []
    for size, cosines in ((height, space.rows), (width, space.columns)):
        place = torch.arange(size, dtype=cosines.dtype, device=cosines.device)
        covariance = 0.95 ** (place[:, None] - place).abs()
        matrices.append((cosines @ covariance @ cosines.T).diagonal())
    variance = matrices[0][:, None] * matrices[1] * 0.25**2
    return float((variance / space.gain.square()).mean())
