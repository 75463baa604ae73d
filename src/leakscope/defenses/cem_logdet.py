"""Conditional entropy by the log-determinant, from running moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.model import SplitModel
from leakscope.defenses._classes import grouped
from leakscope.defenses._encoding import flat_features
from leakscope.defenses._schedules import SCHEDULES, Schedule, refuse_schedule
from leakscope.defenses._weight import refuse_not_positive, refuse_weight


class RunningMoments(nn.Module):
    """Mean and variance of every class × cluster, forgetting old features at the rate 1 − memory."""

    mean: Tensor  # C×K×D
    spread: Tensor  # C×K×D: the weighted sum of squared deviations
    mass: Tensor  # C×K: the weight behind it

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", means)
        self.register_buffer("spread", torch.zeros_like(means))
        self.register_buffer("mass", means.new_zeros(means.shape[:2]))

    def nearest(self, z: Tensor, y: Tensor) -> Tensor:
        """The group (class·K + cluster) of each sample: N."""
        clusters = self.mean.shape[1]
        if clusters == 1:
            return y
        distance = (z[:, None] - self.mean[y]).square().sum(2)  # N×K
        return y * clusters + distance.argmin(1)

    @torch.no_grad()
    def update(self, z: Tensor, group: Tensor, memory: float) -> None:
        """Welford's update for a batch, with the past weighted by `memory`."""
        mean, spread = self.mean.flatten(0, 1), self.spread.flatten(0, 1)  # views: G×D
        groups = grouped(group, len(mean))
        mass = memory * self.mass.flatten() + groups.count
        before = z - mean[group]
        mean += groups.sum(before) / mass.clamp_min(1e-12)[:, None]
        spread.mul_(memory).add_(groups.sum(before * (z - mean[group])))
        self.mass.copy_(mass.view_as(self.mass))

    def variance(self) -> Tensor:
        """G×D; 0 for a group never seen."""
        return (self.spread / self.mass.clamp_min(1e-12)[..., None]).flatten(0, 1).clamp_min(0)


@DEFENSES.register("cem-logdet")
@dataclass(frozen=True)
class CEMLogDet(Defense):
    """Shrinks features within class and cluster against the noise added at the cut, dimension by dimension.

        L = λ · Σ_g π_g · ½ · mean_j log(1 + v_gj / σ²)

    with g over classes × clusters, π_g the share of the batch in g, and v_gj the variance of raw feature j
    in g. It is the information bound I(x; z̃) ≤ H(g) + Σ_g π_g ½ log|Σ_g + σ²I|/|σ²I| with diagonal Σ_g,
    per dimension and without H(g), which has no gradient. Mean and variance are running averages of the
    training features, so one sample of a class in the batch is enough, and no pass over the data and no
    refit is needed. `sigma` is the standard deviation of the noise it is stacked with (`gaussian`).

    After Xia et al., "Theoretical insights in model inversion robustness and conditional entropy
    maximization for collaborative inference systems", 2025 (arXiv 2503.00383).

    Differs from the paper: its code takes the log of one mean variance of a k-means cluster, with a
    floor of 0.01 and a hinge, twice a backward and a pass over the data each epoch (`cem`); none of it here.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 1.0
    sigma: float = 0.025
    clusters: int = 5
    memory: float = 0.98
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_not_positive(sigma=self.sigma)
        refuse_schedule(self.schedule)
        if self.clusters < 1:
            raise ValueError("clusters must be at least 1, per class")
        if not 0 <= self.memory < 1:
            raise ValueError("memory must be in [0, 1): the weight of the past at each step, such as 0.98")

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight == 0:
            return nn.Module()
        # Each cluster starts at one picture of its class; a class with fewer pictures repeats them, and
        # ties go to the first cluster, so that the repeats stay empty.
        order = torch.randperm(len(data), generator=rng)
        groups = grouped(data.labels[order], len(data.classes))
        wanted = torch.arange(self.clusters) % groups.count.long().clamp_min(1)[:, None]  # C×K
        start = (groups.count.cumsum(0) - groups.count).long()[:, None]
        by_label = order[groups.index.argsort(stable=True)]
        chosen = by_label[(start + wanted).clamp_max(len(data) - 1).flatten()]
        means = flat_features(split, data.images[chosen])
        return RunningMoments(means.view(len(data.classes), self.clusters, -1))

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0:
            return None
        moments = step.aux
        assert isinstance(moments, RunningMoments)
        z = step.features.flatten(1).float()  # N×D
        group = moments.nearest(z.detach(), step.y)
        moments.update(z.detach(), group, self.memory)
        variance = moments.variance()[group]  # N×D, constant
        noise = self.sigma**2
        value = 0.5 * (variance / noise).log1p().mean()
        # The running variance has no gradient. That of ½ log(1 + v/σ²) is ½ ∂v/(σ² + v), and ∂v over the
        # batch that of (z − μ)² with μ fixed, since deviations from the mean sum to 0.
        centre = moments.mean.flatten(0, 1)[group]
        slope = 0.5 * ((z - centre).square() / (noise + variance)).mean()
        return self.weight * SCHEDULES[self.schedule](step.learning_rate) * (value + slope - slope.detach())

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        if not isinstance(aux, RunningMoments):
            return {}
        seen = aux.mass.flatten() > 0
        bound = 0.5 * (aux.variance()[seen] / self.sigma**2).log1p().mean()
        return {"nats_per_dimension": float(bound) if seen.any() else 0.0, "groups_seen": int(seen.sum())}
