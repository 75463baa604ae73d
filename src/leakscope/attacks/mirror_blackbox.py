"""MIRROR, black box: a genetic search that reads scores alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._class_search import ClassAttack, Course, classes_of, rebuild, require_queries
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._selection import Pool, draw_pool
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Observed, Prepared, Reconstruction
from leakscope.core.prior import PRIORS, Generator, Prior
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View
from leakscope.nn.style_space import from_p, style_bounds, to_p

_BATCH = 256  # pictures sent at once
_STEP = 0.1  # of a mutation, in deviations of P


@ATTACKS.register("mirror-blackbox")
@dataclass(frozen=True)
class MirrorBlackbox(ClassAttack):
    """Breeds, for each class, the styles whose pictures the target scores highest.

    The population is the top of `samples` random styles by fitness log softmax_y. A generation keeps the
    fittest; every other child takes each coordinate of P from one of two parents, drawn with
    probability ∝ softmax_y, from the first with probability s₁/(s₁ + s₂); a coordinate mutates with probability
    `mutation` by 0.1·U(−σ, σ), σ its deviation in P; w is clipped to the box of `mirror`. It ends after
    `generations`, at softmax_y ≥ `confidence`, or with the queries: then the fittest so far is the picture.

    An et al., "MIRROR", 2022.

    Differs from the published code: there the crossover weighs parents by negative log-probabilities,
    which favours the worse one. Samples are clipped to the box before they are scored, so that the fittest
    is always inside. A budget below 2·`samples` buys a smaller pool, half of it.
    """

    prior: Prior = nested(PRIORS, "style")
    images: int = 1  # the fittest of each class
    samples: int = 100_000
    population: int = 1000
    generations: int = 100
    mutation: float = 0.1
    confidence: float = 0.95
    truncation: float = 0.7
    deviations: float = 1.0

    needs: ClassVar[frozenset[Access]] = frozenset({Access.SCORES})

    def __post_init__(self) -> None:
        if not 2 <= self.population <= self.samples or self.generations < 0:
            raise ValueError("population must be 2 or more, samples at least as many and generations 0 or more")
        if not 1 <= self.images <= self.population:
            raise ValueError("images must be 1 or more, and population at least as many")
        if not 0 <= self.mutation <= 1 or not 0 < self.confidence <= 1 or self.deviations <= 0:
            raise ValueError("mutation is a probability, confidence in (0, 1] and deviations positive")

    def least_queries(self, victims: int) -> int:
        return self.population

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        require_queries(view, self.population, "mirror-blackbox", "raise queries or lower population")
        seed = seed_from(rng)
        generator = view.prior(self.prior)
        require_queries(view, self.population, "mirror-blackbox", "raise queries or lower population")
        box = seeds.generator(seed, "box")
        low, high, deviation = style_bounds(
            generator, self.samples, box, deviations=self.deviations, truncation=self.truncation
        )
        affordable = self.samples if view.budget.left >= 2 * self.samples else int(view.budget.left) // 2
        size = max(self.population, min(self.samples, affordable))
        pool = draw_pool(generator, size, self.truncation, seed, lambda x: view.scores(x).log_softmax(1), (low, high))
        herd = _Herd(self, view, generator, (low, high), deviation)
        return rebuild(
            self.kind_name,
            classes_of(seen, view, self.kind_name),
            per_class=self.images,
            rows=None,
            steps=self.generations,
            search=lambda chunk, course: herd.breed(pool, chunk, ClassDraws(seed, "breed", chunk, view.device), course),
        )


@dataclass(frozen=True)
class _Herd:
    """One population a class, classes×population×style."""

    settings: MirrorBlackbox
    view: View
    generator: Generator
    box: tuple[Tensor, Tensor]
    deviation: Tensor

    @torch.no_grad()
    def breed(self, pool: Pool, classes: Tensor, draws: ClassDraws, course: Course) -> tuple[Tensor, Tensor]:
        settings = self.settings
        w, fitness = pool.best(classes, settings.population)
        w = w.clone()
        for _ in range(settings.generations):
            course.step(-fitness[:, 0])
            active = (fitness[:, 0].exp() < settings.confidence).nonzero().squeeze(1)
            if len(active) * (settings.population - 1) > self.view.budget.left:
                active = active[:0]
            if not len(active):
                continue
            children = self._children(w[active], fitness[active], draws, active)
            born = self._fitness(children, classes[active])
            both = torch.cat([fitness[active, :1], born], 1)
            fitness[active], order = both.sort(1, descending=True)
            together = torch.cat([w[active, :1], children], 1)
            w[active] = together.gather(1, order[..., None].expand_as(together))
        fittest = w[:, : settings.images].flatten(0, 1)
        return self.generator.from_style(fittest), -fitness[:, : settings.images].flatten()

    def _children(self, w: Tensor, fitness: Tensor, draws: ClassDraws, rows: Tensor) -> Tensor:
        """All but the fittest are replaced."""
        count, width = w.shape[1] - 1, w.shape[2]
        share = fitness.softmax(1)
        # Inverse transform: a uniform number falls into the stretch of the parent it draws.
        chance, crossed, changed, away = draws.uniforms(((2, count), *[(count, width)] * 3), rows)
        parents = torch.searchsorted(share.cumsum(1)[:, None].expand(-1, 2, -1).contiguous(), chance)
        parents = parents.clamp_max(w.shape[1] - 1)
        first, second = (w.gather(1, parents[:, i, :, None].expand(-1, -1, width)) for i in (0, 1))
        better, worse = (share.gather(1, parents[:, i]) for i in (0, 1))
        from_first = (better / (better + worse).clamp_min(1e-30))[..., None]
        child = torch.where(crossed < from_first, first, second)
        p = to_p(self.generator, child)
        mutated = changed < self.settings.mutation
        shift = _STEP * self.deviation * (2 * away - 1)
        return from_p(self.generator, torch.where(mutated, p + shift, p)).clamp(*self.box)

    def _fitness(self, w: Tensor, classes: Tensor) -> Tensor:
        labels = classes.repeat_interleave(w.shape[1])
        parts = []
        for styles, own in zip(w.flatten(0, 1).split(_BATCH), labels.split(_BATCH), strict=True):
            scores = self.view.scores(self.generator.from_style(styles))
            parts.append(scores.log_softmax(1).gather(1, own[:, None]).squeeze(1))
        return torch.cat(parts).view(w.shape[:2])
