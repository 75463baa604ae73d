"""BREP-MI: away from the decision boundary, knowing nothing but labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.attacks._class_search import ClassAttack, classes_of, require_queries
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.core import progress, seeds
from leakscope.core.attack import ATTACKS, Observed, Prepared, Reconstruction
from leakscope.core.prior import PRIORS, Generator, Prior
from leakscope.core.results import Diagnostics
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View
from leakscope.nn.curves import thinned

_BATCH = 256  # pictures sent at once
_GROWTH = 1.3
_INSIDE = 0.75  # the radius grows when the sum of ±1 over a sphere is above this share of its points
_START_BOUND = 1.0  # latents are clipped to it when looking for a first member of a class
_BOUND = 1.5  # and to this when moving
_LONGEST_STEP = 3.0
_AHEAD = 16  # rounds whose draws an accelerator fetches at once
_LARGEST = 1e3  # a target that answers the same everywhere would widen the sphere for ever


@ATTACKS.register("brepmi")
@dataclass(frozen=True)
class Brepmi(ClassAttack):
    """Moves a latent away from where its sphere leaves the class, and widens the sphere when it does not.

    From a random latent that the target gives the label y: of `points` directions u on the sphere of radius R,
    g = −mean(1[label(G(z + R u)) ≠ y]·u), z ← clip(z + min(R/3, 3)·g) if the label of the new point is
    still y. When the ±1 of the sphere sum to more than ¾ of its points, R ← 1.3 R. It ends after `steps`
    rounds without growth, or with the queries; the picture is that of the last z.

    Kahla et al., "Label-only model inversion attacks via boundary repulsion", 2022; 33 queries a round.

    Differs from the published code: the classes are those asked for, not the first that random latents reach;
    refused moves count as rounds, which bounds the search; a round that widens the sphere does not move.
    A class that `draws` random latents do not reach gets the picture of a random latent, and is
    counted in `unreached`.
    """

    prior: Prior = nested(PRIORS, "dcgan")
    steps: int = 1000  # rounds at one radius
    points: int = 32
    radius: float = 2.0
    draws: int = 100_000  # random latents to find members of the classes
    images: int = 1

    needs: ClassVar[frozenset[Access]] = frozenset({Access.LABELS})

    def __post_init__(self) -> None:
        if self.steps < 0 or self.points < 1 or self.draws < 1 or self.images < 1:
            raise ValueError("steps must be 0 or more; points, draws and images 1 or more")
        if self.radius <= 0:
            raise ValueError("radius must be positive, such as 2")

    def least_queries(self, victims: int) -> int:
        return victims

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        classes = classes_of(seen, view, self.kind_name)
        least, remedy = self.least_queries(len(classes)), "raise queries or attack fewer classes"
        require_queries(view, least, "brepmi", remedy)
        seed = seed_from(rng)
        generator = view.prior(self.prior)
        require_queries(view, least, "brepmi", remedy)
        rows = classes.repeat_interleave(self.images)
        draws = ClassDraws(seed, "sphere", classes, view.device, self.images)
        asked = _Asked(view, generator)
        z, reached = asked.first_members(rows, self.images, self.draws, seed, draws)
        walk = Walk(z, torch.full((len(z),), self.radius, device=z.device), reached & (self.steps > 0))
        with progress.stage("brepmi", self.steps) as bar:
            while asked.affords(walk, self.points):
                if len(walk.curve) % _AHEAD == 0:  # rows that have ended draw too, and never miss it
                    draws.ahead(_AHEAD, (self.points, z.shape[1]))
                walk.round(lambda z, index: asked.labels(z) == rows[index], draws, self.points, self.steps)
                bar.advance(1, radius=walk.curve[-1], active=walk.left)
        return Reconstruction(
            asked.pictures(walk.z),
            Diagnostics(
                per_class=self.images,
                curve=tuple(thinned(walk.curve)),  # mean radius
                curve_falls=False,
                details={
                    "unreached": float((~reached).float().mean()),
                    "radius": [round(value, 4) for value in walk.radius.tolist()],
                    "rounds": len(walk.curve),
                },
            ),
        )


#: Latents N×latent and their rows in the walk → whether the target gives them the label of their row.
Inside = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Walk:
    """Where every row is, how wide its sphere, and how long since it grew."""

    z: Tensor
    radius: Tensor
    active: Tensor
    curve: list[float] = field(default_factory=list)
    waited: Tensor = field(init=False)
    left: float = field(init=False)  # active rows
    _rows: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._rows = self.active.nonzero().squeeze(1)
        self.left = float(len(self._rows))
        self.waited = torch.zeros_like(self.active, dtype=torch.int64)

    def round(self, inside: Inside, draws: ClassDraws, points: int, patience: int) -> None:
        """One sphere for each active row: it grows, or its centre moves away from the points outside."""
        if self.left != len(self._rows):  # rows only ever end: as many are the same ones
            self._rows = self.active.nonzero().squeeze(1)
        rows = self._rows
        u = F.normalize(draws.normal(points, self.z.shape[1], rows=rows), dim=2)
        radius = self.radius[rows]
        sphere = self.z[rows, None] + radius[:, None, None] * u
        within = inside(sphere.flatten(0, 1), rows.repeat_interleave(points)).view(-1, points)
        grows = (2 * within.sum(1) - points) > _INSIDE * points
        self.radius[rows] = torch.where(grows, radius * _GROWTH, radius)
        self.waited[rows] = torch.where(grows, 0, self.waited[rows] + 1)

        self.active &= (self.waited < patience) & (self.radius < _LARGEST)
        told = [self.radius.mean(), self.active.sum().to(self.radius), (~grows).sum().to(self.radius)]
        mean, self.left, staying = torch.stack(told).tolist()  # the one wait of a round
        self.curve.append(mean)

        kept = grows.byte().argsort(stable=True)[: int(staying)]  # in their order, found without another wait
        moving = rows[kept]
        repulsion = -(u * ~within[..., None]).mean(1)[kept]
        step = (radius[kept] / 3).clamp_max(_LONGEST_STEP)
        moved = (self.z[moving] + step[:, None] * repulsion).clamp(-_BOUND, _BOUND)
        if len(moving):
            stays = inside(moved, moving)
            self.z[moving] = torch.where(stays[:, None], moved, self.z[moving])


@dataclass(frozen=True)
class _Asked:
    """Labels of latents' pictures, in batches, and what is left of the budget."""

    view: View
    generator: Generator

    def affords(self, walk: Walk, points: int) -> bool:
        """Whether a row is active, and another round within the budget."""
        return 0 < int(walk.left) * (points + 1) <= self.view.budget.left

    def labels(self, z: Tensor) -> Tensor:
        return torch.cat([self.view.labels(self.generator.decode(part)) for part in z.split(_BATCH)])

    @torch.no_grad()
    def pictures(self, z: Tensor) -> Tensor:
        return torch.cat([self.generator.decode(part) for part in z.split(_BATCH)])

    @torch.no_grad()
    def first_members(self, rows: Tensor, each: int, limit: int, seed: int, draws: ClassDraws) -> tuple[Tensor, Tensor]:
        """The first `each` random latents of every class, shared out class-major, and which rows have one.

        All classes look at the same latents in the same order, so that none depends on the others.
        """
        rng = seeds.generator(seed, "members")
        z = draws.normal(self.generator.latent).clamp(-_START_BOUND, _START_BOUND)
        place = torch.arange(len(rows), device=rows.device) % each  # which member of its class a row takes
        found, reached = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
        drawn = 0
        while not bool(reached.all()):
            size = int(min(_BATCH, limit - drawn, self.view.budget.left))
            if size < 1:
                break
            latents = self.generator.sample(size, rng).clamp(-_START_BOUND, _START_BOUND)
            drawn += size
            hits = self.labels(latents)[None] == rows[:, None]  # rows×size
            order = found[:, None] + hits.cumsum(1) - 1  # how many of the class came before
            mine = hits & (order == place[:, None])
            now = mine.any(1)
            z = torch.where(now[:, None], latents[mine.int().argmax(1)], z)
            reached |= now
            found += hits.sum(1)
        return z, reached
