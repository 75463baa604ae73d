"""Whole-network inversion in a space of smooth pictures: what breaks networks that no block can be peeled off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._observed import checked_features, explainable, release_error
from leakscope.attacks._pictures import PictureSpace
from leakscope.attacks._release import child
from leakscope.attacks.peeling.chain import Block, Chain
from leakscope.attacks.peeling.invert import invert
from leakscope.attacks.peeling.krylov import cgls, norm
from leakscope.attacks.peeling.lbfgs import minimise
from leakscope.attacks.peeling.pieces import Products, Smooth
from leakscope.attacks.peeling.take_apart import take_apart
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.errors import UsageError
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, Encoder, View
from leakscope.nn.curves import mean_of_finite, thinned

_CHUNK = 16
_GREYS = (0.75, 0.25)  # further starts: light and dark
_STUCK = 0.05  # relative fit after the first stage that calls for another start
_ODD = 1.0  # relative fit worse than explaining nothing


@dataclass
class Fitted:
    """Pictures (not clipped) and how well they explain the features."""

    images: Tensor
    fit: Tensor  # n, ‖F(x) − y‖ / ‖y‖
    curve: list[float]


@ATTACKS.register("e2e-lbfgs")
@dataclass(frozen=True)
class EndToEnd(Attack):
    """Finds the smooth picture whose features match, through the whole network at once.

    min_z s ‖F(½ + ¼ (Lap + ε)^{−1/2} z) − y‖² + λ ‖z‖²

    by L-BFGS, with s such that the mean of JᵀJ is one, and λ lowered in stages. Trailing blocks that keep
    the dimension are first peeled off exactly. Pictures that explain little after the first stage are
    started again from light and dark grey. Where features outnumber pixels, Gauss–Newton steps with CG
    finish the last digits; where a release is noisy, λ is the most likely one for that noise, s σ²/τ²
    with τ² the mean square of z in natural pictures, and nothing is peeled.

    The objective is that of Mahendran and Vedaldi (2015) with a quadratic prior; the rest is ours
    (`docs/`, study B5).
    """

    iterations: int = 300
    memory: int = 20
    epsilon: float = 0.2
    chroma: float = 0.7
    prior_weights: tuple[float, ...] = (1e-3, 1e-4, 1e-5)
    gauss_newton: int = 1
    peel_trailing: bool = True

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.FEATURES})
    white_box: ClassVar[bool] = True
    #: E‖F(x) + noise − y‖² is ‖F(x) − y‖² and a constant: for noise that is added, the mean is taken exactly.
    averages_noise: ClassVar[bool] = True

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
        fits, images, curves = [], [], []
        for y in features.split(_CHUNK):
            shorter, target = (chain, y) if noise > 0 or not self.peel_trailing else _peel_trailing(chain, y)
            peeled = [block.name for block in chain.blocks[len(shorter.blocks) :]]
            found = self.fit(shorter, target, view.image_shape, child(rng, view.device), noise)
            images.append(found.images.clamp(0, 1))
            fits.append(found.fit)
            curves.append(found.curve)
        fit = torch.cat(fits)
        length = max(len(curve) for curve in curves)
        padded = [curve + curve[-1:] * (length - len(curve)) for curve in curves]
        diagnosed = Diagnostics(
            curve=tuple(thinned(torch.tensor(padded).clamp(max=1e30).mean(0).tolist())),
            diverged=float((~(fit < _ODD)).float().mean()),
            diverged_blocks=() if bool((fit < _ODD).all()) else ("whole network",),
            unexplained=float((~(fit <= explainable(features, noise))).float().mean()),
            details={
                "fit": mean_of_finite(fit),
                "worst_fit": float(fit.max()) if bool(fit.isfinite().all()) else None,
                "release_error": noise,
                "peeled": peeled,
            },
        )
        return Reconstruction(torch.cat(images), diagnosed)

    def fit(
        self, network: Chain, y: Tensor, image_shape: tuple[int, int, int], rng: torch.Generator, noise: float = 0.0
    ) -> Fitted:
        """Pictures whose features under `network` are y."""
        space = PictureSpace(image_shape, self.epsilon, self.chroma, y)
        size = image_shape[0] * image_shape[1] * image_shape[2]
        problem = _Objective(network, y, space, _scale(network, y, space, size, rng))
        weights = self.prior_weights
        if noise > 0:
            likely = problem.scale * noise**2 / _natural_energy(space)
            weights = tuple(max(weight, likely) for weight in weights)
        share = -(-self.iterations // len(weights))
        z = 0.1 * torch.randn(len(y), size, generator=rng, dtype=y.dtype, device=y.device)
        curve: list[float] = []
        for stage, weight in enumerate(weights):
            objective = replace(problem, weight=weight)
            minimum = minimise(objective, z, iterations=share, memory=self.memory)
            z = minimum.x
            if stage == 0:
                z = self._other_starts(objective, z, share)
            curve += [objective.relative(value) for value in minimum.curve]
        if noise == 0 and y[0].numel() >= size:
            for _ in range(self.gauss_newton):
                z = replace(problem, weight=weights[-1] / 10).gauss_newton(z)
        images = space.pixels(z)
        left = norm(network(images) - y) / norm(y).clamp_min(torch.finfo(y.dtype).tiny)
        usable = images.flatten(1).isfinite().all(1)
        images = torch.where(usable[:, None, None, None], images, 0.5)
        return Fitted(images, torch.where(usable, left, torch.inf), curve)

    def _other_starts(self, objective: _Objective, z: Tensor, share: int) -> Tensor:
        """Light and dark starts for the rows that are stuck; the best of the three by objective."""
        stuck = (objective.misfit(z) > _STUCK).nonzero().flatten()
        if len(stuck) == 0:
            return z
        part = replace(objective, y=objective.y[stuck])
        best = minimise(part, z[stuck], iterations=0, memory=1)
        x, value = best.x, best.value
        for grey in _GREYS:
            start = part.space.coordinates(torch.full_like(part.space.pixels(x), grey))
            other = minimise(part, start, iterations=share, memory=self.memory)
            better = other.value < value
            x, value = torch.where(better[:, None], other.x, x), torch.minimum(other.value, value)
        z = z.clone()
        z[stuck] = x
        return z


@dataclass(frozen=True)
class _Objective:
    """s‖F(x(z)) − y‖² + λ‖z‖² of every row, with its gradient."""

    network: Chain
    y: Tensor
    space: PictureSpace
    scale: float
    weight: float = 0.0

    def __call__(self, z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        features, jacobian = self.network.linearise(self.space.pixels(z))
        gap = features - self.y[index]
        value = self.scale * gap.flatten(1).square().sum(1) + self.weight * z.square().sum(1)
        gradient = self.space.adjoint(jacobian.adjoint(2 * self.scale * gap)) + 2 * self.weight * z
        return value, gradient

    def relative(self, value: float) -> float:
        """An objective over the energy of the features, comparable between stages."""
        return value / max(self.scale * float(self.y.flatten(1).square().sum(1).mean()), 1e-30)

    def misfit(self, z: Tensor) -> Tensor:
        return norm(self.network(self.space.pixels(z)) - self.y) / norm(self.y).clamp_min(1e-30)

    def gauss_newton(self, z: Tensor) -> Tensor:
        """One step of the linearised problem by CG; rows it does not improve stay."""
        features, jacobian = self.network.linearise(self.space.pixels(z))
        root = self.scale**0.5
        products = Products(
            lambda v: root * jacobian.forward(self.space.linear(v)),
            lambda u: self.space.adjoint(jacobian.adjoint(root * u)),
        )
        gap = root * (self.y - features)
        step = cgls(products, gap, iterations=40, tolerance=1e-4, damping=self.weight, offset=z)
        index = torch.arange(len(z), device=z.device)
        before, _ = self(z, index)
        best, value = z, before
        for length in (1.0, 0.5, 0.25):
            trial = z + length * step
            renewed, _ = self(trial, index)
            better = renewed < value
            best, value = torch.where(better[:, None], trial, best), torch.minimum(renewed, value)
            if bool((value < before).all()):
                break
        return best


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


def _scale(network: Chain, y: Tensor, space: PictureSpace, size: int, rng: torch.Generator) -> float:
    """One over the mean diagonal of JᵀJ, per quarter of the pixel range, at a smooth random picture."""
    z = torch.randn(1, size, generator=rng, dtype=y.dtype, device=y.device)
    _, jacobian = network.linearise(space.pixels(z))
    probe = torch.randn(1, *space.shape, generator=rng, dtype=y.dtype, device=y.device)
    gain = float(jacobian.forward(0.25 * probe).square().sum() / probe.square().sum())
    return 1 / gain if gain > 0 else 1.0


def _natural_energy(space: PictureSpace) -> float:
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
