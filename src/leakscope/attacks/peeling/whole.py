"""The whole network as one least-squares problem over smooth pictures, with Newton steps on its sign pattern.

    s ‖F(x(z)) − y‖² + λ ‖z‖²

F is piecewise linear, so that for a fixed pattern of signs this is a linear least-squares problem: once most
signs are right, a Gauss–Newton step solved by conjugate gradients nearly ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.attacks._pictures import PictureSpace
from leakscope.attacks.peeling.chain import Chain
from leakscope.attacks.peeling.krylov import cgls, norm
from leakscope.attacks.peeling.pieces import Products

_GAIN = 0.05  # a Newton step that lowers the objective by a smaller share is a row's last, but for its first
_TOLERANCE = 1e-3  # share of its gradient at which a linear problem is solved
_PROBES = 4  # random features that tell how strongly each coordinate of a picture is seen
_LENGTHS = (1.0, 0.5, 0.2, 0.05)


@dataclass(frozen=True)
class Whole:
    """The objective of every row, with its gradient."""

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

    def take(self, rows: Tensor) -> Whole:
        return replace(self, y=self.y[rows])

    def value(self, z: Tensor) -> Tensor:
        gap = self.network(self.space.pixels(z)) - self.y
        return self.scale * gap.flatten(1).square().sum(1) + self.weight * z.square().sum(1)

    def energy(self) -> float:
        """The energy of the features, over which objectives are comparable between stages."""
        return max(self.scale * float(self.y.flatten(1).square().sum(1).mean()), 1e-30)

    def misfit(self, z: Tensor) -> Tensor:
        """‖F(x) − y‖ / ‖y‖."""
        return norm(self.network(self.space.pixels(z)) - self.y) / norm(self.y).clamp_min(1e-30)

    def newton(
        self, z: Tensor, *, steps: int, products: int, close: float = 1e-4, gains: tuple[float, float] = (0.0, _GAIN)
    ) -> Tensor:
        """At most `steps` Gauss–Newton steps of `products` conjugate gradients, until features are `close`.

        A row whose step lowers the objective by a smaller share than `gains` asks for, of the first step and of later
        ones, ends. By default the first may gain little: it sets signs right.
        """
        z, rows = z.clone(), torch.arange(len(z), device=z.device)
        value, energy = self.value(z), self.y.flatten(1).square().sum(1)
        arrived = close**2 * self.scale * energy
        going = ~(value <= arrived)
        for number in range(steps):
            if z.device.type == "cpu":  # an accelerator would rather step than wait
                rows = rows[going[rows]]
                if len(rows) == 0:
                    break
            part = self.take(rows)
            step = part._step(z[rows], products)
            moved, renewed = part._shortened(z[rows], step, value[rows])
            gained = (renewed < (1 - gains[number > 0]) * value[rows]) & (renewed > arrived[rows])
            z[rows] = torch.where(going[rows, None], moved, z[rows])
            value[rows] = torch.where(going[rows], renewed, value[rows])
            going[rows] = going[rows] & gained
        return z

    def _step(self, z: Tensor, products: int) -> Tensor:
        """argmin_d s‖J d − (y − F)‖² + λ‖z + d‖², in coordinates in which the diagonal of its matrix is about one."""
        features, jacobian = self.network.linearise(self.space.pixels(z))
        root, shape, split = self.scale**0.5, self.y.shape[1:], self.y[0].numel()

        def pulled(u: Tensor) -> Tensor:
            return self.space.adjoint(jacobian.adjoint(root * u))

        unit = self._unit(pulled, z)
        pull = self.weight**0.5 * unit
        stacked = Products(
            lambda v: torch.cat([root * jacobian.forward(self.space.linear(unit * v)).flatten(1), pull * v], 1),
            lambda u: unit * pulled(u[:, :split].reshape(-1, *shape)) + pull * u[:, split:],
        )
        gap = torch.cat([root * (self.y - features).flatten(1), -(self.weight**0.5) * z], 1)
        return unit * cgls(stacked, gap, iterations=products, tolerance=_TOLERANCE)

    def _unit(self, pulled: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        """One over the root of the diagonal of JᵀJ, which random features tell, smoothed over frequencies."""
        rng = torch.Generator(device=z.device).manual_seed(0)
        energy = torch.zeros_like(z[0])
        for _ in range(_PROBES):
            signs = torch.randint(0, 2, self.y.shape, generator=rng, device=z.device, dtype=torch.int8)
            energy = energy + pulled(2 * signs.to(z.dtype) - 1).square().mean(0) / _PROBES
        smooth = F.avg_pool2d(F.pad(energy.view(1, *self.space.shape), (1, 1, 1, 1), mode="replicate"), 3, 1)
        floor = torch.finfo(z.dtype).eps * smooth.max().clamp_min(torch.finfo(z.dtype).tiny)
        return (smooth.flatten() + self.weight + floor).rsqrt()

    def _shortened(self, z: Tensor, step: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The longest of a few lengths that improves each row, and its value; rows that none improves stay."""
        best, least, open_ = z, value, torch.ones_like(value, dtype=torch.bool)
        for length in _LENGTHS:
            trial = z + length * step
            renewed = self.value(trial)
            better = open_ & (renewed < value)
            best, least = torch.where(better[:, None], trial, best), torch.where(better, renewed, least)
            open_ = open_ & ~better
            if z.device.type == "cpu" and not bool(open_.any()):
                break
        return best, least


def measured_scale(network: Chain, space: PictureSpace, like: Tensor, rng: torch.Generator) -> float:
    """One over the mean diagonal of JᵀJ, per quarter of the pixel range, at a smooth random picture."""
    channels, height, width = space.shape
    z = torch.randn(1, channels * height * width, generator=rng, dtype=like.dtype, device=like.device)
    _, jacobian = network.linearise(space.pixels(z))
    probe = torch.randn(1, *space.shape, generator=rng, dtype=like.dtype, device=like.device)
    gain = float(jacobian.forward(0.25 * probe).square().sum() / probe.square().sum())
    return 1 / gain if gain > 0 else 1.0
