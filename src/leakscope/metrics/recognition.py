"""Whether rebuilt identities are recognised by a network that no attack has read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from leakscope.metrics.distribution import frechet_distance
from leakscope.metrics.embedder import least_squared_distance


@dataclass(frozen=True)
class Judged:
    """What is known about the M reconstructions of each of K attacked identities.

    `scores` and `features` come from the evaluation network, `believed` from the target itself.
    `private` are the evaluation network's features of the private pictures, with their `labels`.
    """

    classes: Tensor  # K
    scores: Tensor  # K×M×C
    features: Tensor  # K×M×d
    believed: Tensor  # K×M
    private: Tensor  # P×d
    labels: Tensor  # P
    ceiling: float  # share of held-out private pictures that the evaluation network recognises

    @property
    def chance(self) -> float:
        return 1 / self.scores.shape[-1]

    @property
    def recognised(self) -> Tensor:
        """K×M: the evaluation network names the attacked identity."""
        return self.scores.argmax(-1) == self.classes[:, None]


def attack_accuracy(judged: Judged) -> Tensor:
    return judged.recognised.float().mean(1)


def attack_accuracy_5(judged: Judged) -> Tensor:
    best = judged.scores.topk(min(5, judged.scores.shape[-1]), dim=-1).indices
    return (best == judged.classes[:, None, None]).any(-1).float().mean(1)


def leak(judged: Judged) -> Tensor:
    return (attack_accuracy(judged) - judged.chance) / max(judged.ceiling - judged.chance, 1e-6)


def target_accuracy(judged: Judged) -> Tensor:
    return (judged.believed == judged.classes[:, None]).float().mean(1)


def false_positive(judged: Judged) -> Tensor:
    fooled = (judged.believed == judged.classes[:, None]) & ~judged.recognised
    return fooled.float().mean(1)


def knn_distance(judged: Judged) -> Tensor:
    return least_squared_distance(judged.features, judged.classes, judged.private, judged.labels)


def centroid_distance(judged: Judged) -> Tensor:
    own = (judged.labels[None] == judged.classes[:, None]).to(judged.private.dtype)  # K×P
    centres = own @ judged.private / own.sum(1, keepdim=True)
    distances: Tensor = torch.linalg.vector_norm(judged.features - centres[:, None], dim=-1)
    return distances.mean(1)


class Neighbourhoods(NamedTuple):
    """How two sets of points cover each other."""

    precision: float
    recall: float
    density: float
    coverage: float


def neighbourhoods(real: Tensor, fake: Tensor, k: int = 3) -> Neighbourhoods:
    """Precision, recall, density and coverage of `fake` against `real`, in k-nearest-neighbour balls.

    Kynkäänniemi et al., NeurIPS 2019; Naeem et al., ICML 2020. A point's ball reaches its k-th nearest
    neighbour in its own set.
    """
    if min(len(real), len(fake)) <= k:
        raise ValueError(f"{k} neighbours need more than {k} points in each set, not {len(real)} and {len(fake)}")

    def radii(points: Tensor) -> Tensor:
        return torch.cdist(points, points).kthvalue(k + 1, dim=1).values  # the nearest is the point itself

    between = torch.cdist(real.double(), fake.double())
    in_real = between <= radii(real.double())[:, None]
    in_fake = between <= radii(fake.double())[None]
    return Neighbourhoods(
        precision=in_real.any(0).float().mean().item(),
        recall=in_fake.any(1).float().mean().item(),
        density=in_real.float().sum(0).mean().item() / k,
        coverage=in_real.any(1).float().mean().item(),
    )


def _own_private(judged: Judged) -> Tensor:
    return judged.private[torch.isin(judged.labels, judged.classes)]


def frechet(judged: Judged) -> Tensor:
    return frechet_distance(judged.features.flatten(0, 1), _own_private(judged))


def _neighbourhood(of: str) -> Callable[[Judged], Tensor]:
    """One of the four, by name."""

    def value(judged: Judged) -> Tensor:
        found = neighbourhoods(_own_private(judged), judged.features.flatten(0, 1))
        return torch.tensor(getattr(found, of))

    return value


@dataclass(frozen=True)
class Measure:
    """One number an identity, or one for all of them."""

    name: str
    more_leak: Literal["high", "low"]
    what: str
    value: Callable[[Judged], Tensor]
    of_set: bool = False


#: Everything a class audit reports; a number an identity is the mean over its reconstructions.
MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("leak", "high", "attack accuracy between chance (0) and that of real held-out pictures (1)", leak),
        Measure("attack-accuracy", "high", "share recognised by the evaluation network", attack_accuracy),
        Measure("attack-accuracy-5", "high", "share with the identity among its first five", attack_accuracy_5),
        Measure("target-accuracy", "high", "share that the target itself takes for the identity", target_accuracy),
        Measure(
            "false-positive", "low", "share the target accepts and the evaluation network does not", false_positive
        ),
        Measure("knn", "low", "least squared distance to a private picture, evaluation features", knn_distance),
        Measure(
            "centroid", "low", "distance to the mean of the private pictures, evaluation features", centroid_distance
        ),
        Measure(
            "fid:evaluator", "low", "Fréchet distance to private pictures, evaluation features", frechet, of_set=True
        ),
        *(
            Measure(of, "high", f"{what} (k = 3)", _neighbourhood(of), of_set=True)
            for of, what in (
                ("precision", "share of reconstructions among private pictures"),
                ("recall", "share of private pictures among reconstructions"),
                ("density", "private neighbourhoods that hold a reconstruction, on average, over k"),
                ("coverage", "share of private pictures with a reconstruction near"),
            )
        ),
    )
}


def recognition(judged: Judged) -> dict[str, Tensor]:
    """Every measure, one value for each identity."""
    absent = [int(c) for c in judged.classes if not (judged.labels == c).any()]
    if absent:
        raise ValueError(f"no private picture of identity {absent[0]}; an identity that was never there cannot leak")
    return {name: measure.value(judged).float().cpu() for name, measure in MEASURES.items()}
