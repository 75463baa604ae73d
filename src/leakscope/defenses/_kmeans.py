"""Lloyd's k-means in every class at once."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.defenses._classes import grouped


def _distances(z: Tensor, y: Tensor, centroids: Tensor) -> Tensor:
    """Squared distance of each sample to the K centroids of its class, less its own ‖z‖²: N×K."""
    classes, clusters, _ = centroids.shape
    flat = centroids.flatten(0, 1)
    with torch.autocast(z.device.type, enabled=False):  # differences of large products need their digits
        products = (z @ flat.T).view(-1, classes, clusters)
    own = products.gather(1, y.view(-1, 1, 1).expand(-1, 1, clusters)).squeeze(1)
    return flat.square().sum(1).view(classes, clusters)[y] - 2 * own


def nearest(z: Tensor, y: Tensor, centroids: Tensor) -> Tensor:
    """The nearest of its class's centroids for each sample; the first of equals: N."""
    # In parts, so that 50,000 samples against all centroids of 500 classes fit in memory.
    return torch.cat([_distances(a, b, centroids).argmin(1) for a, b in zip(z.split(4096), y.split(4096), strict=True)])


def seeded(z: Tensor, y: Tensor, classes: int, clusters: int, rng: torch.Generator) -> Tensor:
    """First centroids, drawn one after another among the samples with probability ∝ distance to those drawn.

    A class with fewer distinct samples than clusters repeats some; repeats stay empty.
    """
    distance = torch.ones(len(z), device=z.device)
    drawn: list[Tensor] = []
    for _ in range(clusters):  # each draw depends on the last; all classes draw at once
        # Gumbel's trick: the largest of log p + noise is a draw from p.
        noise = -torch.rand(len(z), generator=rng).clamp(1e-12, 1 - 1e-7).log().neg().log()
        key = distance.clamp_min(1e-30).log() + noise.to(z.device)
        best = key.new_full((classes,), -torch.inf).scatter_reduce(0, y, key, "amax")
        winners = (key == best[y]).nonzero().squeeze(1)
        chosen = z.new_zeros(classes, z.shape[1])
        chosen[y[winners]] = z[winners]
        drawn.append(chosen)
        apart = (z - chosen[y]).square().sum(1).sqrt()
        distance = apart if len(drawn) == 1 else torch.minimum(distance, apart)
    return torch.stack(drawn, 1)


def fit(z: Tensor, y: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    """Lloyd's iterations until assignments repeat; an empty cluster keeps its centroid: C×K×D."""
    classes, clusters, width = centroids.shape
    previous = None
    for _ in range(iterations):
        assigned = nearest(z, y, centroids)
        if previous is not None and torch.equal(assigned, previous):
            break
        groups = grouped(y * clusters + assigned, classes * clusters)
        means = groups.mean(z).view(classes, clusters, width)
        centroids = torch.where(groups.count.view(classes, clusters, 1) > 0, means, centroids)
        previous = assigned
    return centroids
