"""Conditional entropy by class-wise k-means, as published in code."""

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
from leakscope.defenses._kmeans import fit, nearest, seeded
from leakscope.defenses._schedules import SCHEDULES, Schedule, backward_in_two_stages, refuse_schedule
from leakscope.defenses._weight import refuse_not_positive, refuse_weight


class Mixture(nn.Module):
    """Centroids, variances and weights of the K clusters of each of C classes."""

    centroids: Tensor  # C×K×D
    variances: Tensor  # C×K
    weights: Tensor  # C×K: shares of the class
    fitted: Tensor
    seed: Tensor

    def __init__(self, classes: int, clusters: int, width: int, samples: int, seed: Tensor) -> None:
        super().__init__()
        self.samples = samples
        self.register_buffer("centroids", torch.zeros(classes, clusters, width))
        self.register_buffer("variances", torch.zeros(classes, clusters))
        self.register_buffer("weights", torch.zeros(classes, clusters))
        self.register_buffer("fitted", torch.tensor(False))
        self.register_buffer("seed", seed)

    @torch.no_grad()
    def refit(self, z: Tensor, y: Tensor, iterations: int) -> None:
        classes, clusters, _ = self.centroids.shape
        if not self.fitted:
            rng = torch.Generator().manual_seed(int(self.seed))
            self.centroids.copy_(seeded(z, y, classes, clusters, rng))
        self.centroids.copy_(fit(z, y, self.centroids, iterations))
        groups = grouped(y * clusters + nearest(z, y, self.centroids), classes * clusters)
        deviation = (z - self.centroids.flatten(0, 1)[groups.index]).square().mean(1)
        self.variances.copy_(groups.mean(deviation).view(classes, clusters))
        count = groups.count.view(classes, clusters)
        self.weights.copy_(count / count.sum(1, keepdim=True).clamp_min(1))
        self.fitted.fill_(True)


@DEFENSES.register("cem")
@dataclass(frozen=True)
class CEM(Defense):
    """Pulls features toward the k-means centroids of their class until the spread is below the noise.

        L = λ f(η) · 1/|C_B| · Σ_c Σ_k w_ck · max(0, log(v_ck + γ) − log(ρσ² + γ)),
        v_ck = a·mean_{i∈ck} (z_i − μ_ck)² + (1 − a)·V_ck,   a = min(10·n_ck / (w_ck N_c), 0.99)

    with C_B the classes in the batch, n_ck its samples nearest to centroid k of class c, N_c the mean size
    of a class, and f(η) the `schedule`. Centroids μ, variances V and weights w are refitted before every
    epoch but the first, by a pass over the data; the first epoch has no penalty. `sigma` is the standard
    deviation of the noise it is stacked with (`gaussian`). `two_stage` takes the published gradient step.

    Xia et al., "Theoretical insights in model inversion robustness and conditional entropy
    maximization for collaborative inference systems", 2025 (arXiv 2503.00383), as in its code.

    Differs from the paper: the text fits a Gaussian mixture, the code this. From the code: cluster
    indices stay aligned after an empty cluster; the feature pass sees pictures without augmentation, each
    once; N_c counts the data and not 391·128; with λ = 0 there is no feature pass; covariances used for
    logging only are not computed; the variant without logarithm is left out.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 16.0
    sigma: float = 0.025
    clusters: int = 5
    rho: float = 0.125
    gamma: float = 0.01
    pull: float = 10.0
    iterations: int = 50
    schedule: Schedule = "inverse-rate"
    two_stage: bool = False

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        refuse_not_positive(sigma=self.sigma, rho=self.rho, gamma=self.gamma, pull=self.pull)
        refuse_schedule(self.schedule)
        if self.clusters < 1 or self.iterations < 1:
            raise ValueError("clusters and iterations must be at least 1")
        # A stack asks before training who replaces the gradient step; only the two-stage form does.
        object.__setattr__(self, "owns_backward", self.two_stage)

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight == 0:
            return nn.Module()
        width = flat_features(split, data.images[:1]).shape[1]
        seed = torch.randint(2**62, (), generator=rng)
        return Mixture(len(data.classes), self.clusters, width, len(data), seed)

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        if isinstance(aux, Mixture) and epoch > 0:
            z = flat_features(split, data.images)
            aux.refit(z, data.labels.to(z.device), self.iterations)

    def penalty(self, step: Step) -> Tensor | None:
        mixture = step.aux
        if self.weight == 0 or not isinstance(mixture, Mixture) or not mixture.fitted:
            return None
        factor = self.weight * SCHEDULES[self.schedule](step.learning_rate)
        return factor * self.surrogate(mixture, step.features.flatten(1).float(), step.y)

    def surrogate(self, mixture: Mixture, z: Tensor, y: Tensor) -> Tensor:
        """The loss before λ: N×D features and N labels to a number."""
        classes, clusters = mixture.weights.shape
        groups = grouped(y * clusters + nearest(z.detach(), y, mixture.centroids), classes * clusters)
        centre = mixture.centroids.flatten(0, 1)[groups.index]
        now = groups.mean((z - centre).square().mean(1))  # CK
        weights = mixture.weights.flatten()
        # A cluster empty at the last fit has weight 0: it is capped here and counts for nothing below.
        share = self.pull * groups.count / (weights * mixture.samples / classes).clamp_min(1e-12)
        share = torch.where(share >= 1, 0.99, share)
        variance = share * now + (1 - share) * mixture.variances.flatten()
        floor = torch.tensor(self.rho * self.sigma**2 + self.gamma, device=z.device)
        excess = ((variance + self.gamma).log() - floor.log()).clamp_min(0)
        present = (groups.count.view(classes, clusters).sum(1) > 0).sum().clamp_min(1)
        return (weights * excess * (groups.count > 0)).sum() / present

    def backward(self, loss: Tensor, step: Step) -> None:
        if self.two_stage:
            backward_in_two_stages(loss, step)
        else:
            loss.backward()

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        if not isinstance(aux, Mixture) or not aux.fitted:
            return {}
        mean = (aux.weights * aux.variances).sum(1).mean()
        return {"cluster_variance": float(mean), "empty_clusters": int((aux.weights == 0).sum())}
