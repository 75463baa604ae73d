"""Whether rebuilt identities are recognised by a network that no attack has read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from leakscope.core.devices import widened
from leakscope.core.metric import METRICS, Scored
from leakscope.metrics.distribution import AT_ONCE, FrechetDistance, frechet_distance
from leakscope.metrics.embedder import least_squared_distance
from leakscope.metrics.networks import EMBEDDINGS


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
    guess: Tensor | None = None  # the K·M reconstructions themselves
    pictures: Tensor | None = None  # the P private pictures
    root: Path | None = None  # where weights of networks lie
    embedded: Judged | None = None  # what a face embedding says; None: none was asked for

    @property
    def chance(self) -> float:
        return 1 / self.scores.shape[-1]

    @property
    def recognised(self) -> Tensor:
        """K×M: the evaluation network names the attacked identity."""
        return self.scores.argmax(-1) == self.classes[:, None]

    @property
    def accepted(self) -> Tensor:
        """K×M: the target takes the reconstruction for the attacked identity."""
        return self.believed == self.classes[:, None]

    @property
    def own_private(self) -> Tensor:
        """Features of the private pictures of the attacked identities."""
        return self.private[torch.isin(self.labels, self.classes)]


class IdentityMetric(Scored):
    """One number for each identity (the mean over its reconstructions), or one for all of them."""

    goal: ClassVar[str] = "identities"
    #: Whose opinion it is: the evaluator's, that of a face embedding, or that of one beside a network.
    reads: ClassVar[Literal["evaluator", "embedding", "second"]] = "evaluator"

    @abstractmethod
    def __call__(self, judged: Judged) -> Tensor:
        """K values, or one when `of_set`."""


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

    real, fake = widened(real), widened(fake)

    def radii(points: Tensor) -> Tensor:
        return torch.cdist(points, points).kthvalue(k + 1, dim=1).values  # the nearest is the point itself

    between = torch.cdist(real, fake)
    in_real = between <= radii(real)[:, None]
    in_fake = between <= radii(fake)[None]
    return Neighbourhoods(
        precision=in_real.any(0).float().mean().item(),
        recall=in_fake.any(1).float().mean().item(),
        density=in_real.float().sum(0).mean().item() / k,
        coverage=in_real.any(1).float().mean().item(),
    )


@METRICS.register("recognised")
@dataclass(frozen=True)
class Recognised(IdentityMetric):
    """Attack accuracy between chance (0) and that of real held-out pictures (1)."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    @property
    def name(self) -> str:
        return "leak"

    def __call__(self, judged: Judged) -> Tensor:
        recognised = judged.recognised.float().mean(1)
        return (recognised - judged.chance) / max(judged.ceiling - judged.chance, 1e-6)


@METRICS.register("attack-accuracy")
@dataclass(frozen=True)
class AttackAccuracy(IdentityMetric):
    """Share recognised by the evaluation network."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def __call__(self, judged: Judged) -> Tensor:
        return judged.recognised.float().mean(1)


@METRICS.register("attack-accuracy-5")
@dataclass(frozen=True)
class AttackAccuracy5(IdentityMetric):
    """Share with the identity among the evaluation network's first five."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def __call__(self, judged: Judged) -> Tensor:
        best = judged.scores.topk(min(5, judged.scores.shape[-1]), dim=-1).indices
        return (best == judged.classes[:, None, None]).any(-1).float().mean(1)


@METRICS.register("target-accuracy")
@dataclass(frozen=True)
class TargetAccuracy(IdentityMetric):
    """Share that the target itself takes for the identity."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def __call__(self, judged: Judged) -> Tensor:
        return judged.accepted.float().mean(1)


@METRICS.register("false-positive")
@dataclass(frozen=True)
class FalsePositive(IdentityMetric):
    """Share the target accepts and the evaluation network does not."""

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def __call__(self, judged: Judged) -> Tensor:
        return (judged.accepted & ~judged.recognised).float().mean(1)


@METRICS.register("knn")
@dataclass(frozen=True)
class NearestPrivate(IdentityMetric):
    """Least squared distance to a private picture, evaluation features."""

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def __call__(self, judged: Judged) -> Tensor:
        return least_squared_distance(judged.features, judged.classes, judged.private, judged.labels)


@METRICS.register("centroid")
@dataclass(frozen=True)
class CentroidDistance(IdentityMetric):
    """Distance to the mean of the private pictures, evaluation features."""

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def __call__(self, judged: Judged) -> Tensor:
        own = (judged.labels[None] == judged.classes[:, None]).to(judged.private.dtype)  # K×P
        centres = own @ judged.private / own.sum(1, keepdim=True)
        distances: Tensor = torch.linalg.vector_norm(judged.features - centres[:, None], dim=-1)
        return distances.mean(1)


@METRICS.register("fid-evaluator")
@dataclass(frozen=True)
class EvaluatorFrechet(IdentityMetric):
    """Fréchet distance to private pictures, evaluation features."""

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, None)
    of_set: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "fid:evaluator"

    def __call__(self, judged: Judged) -> Tensor:
        return frechet_distance(judged.features.flatten(0, 1), judged.own_private)


@METRICS.register("precision")
@dataclass(frozen=True)
class Precision(IdentityMetric):
    """Share of reconstructions among private pictures (k = 3)."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    of_set: ClassVar[bool] = True

    def __call__(self, judged: Judged) -> Tensor:
        return torch.tensor(neighbourhoods(judged.own_private, judged.features.flatten(0, 1)).precision)


@METRICS.register("recall")
@dataclass(frozen=True)
class Recall(IdentityMetric):
    """Share of private pictures among reconstructions (k = 3)."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    of_set: ClassVar[bool] = True

    def __call__(self, judged: Judged) -> Tensor:
        return torch.tensor(neighbourhoods(judged.own_private, judged.features.flatten(0, 1)).recall)


@METRICS.register("density")
@dataclass(frozen=True)
class Density(IdentityMetric):
    """Private neighbourhoods that hold a reconstruction, on average, over k = 3."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, None)
    of_set: ClassVar[bool] = True

    def __call__(self, judged: Judged) -> Tensor:
        return torch.tensor(neighbourhoods(judged.own_private, judged.features.flatten(0, 1)).density)


@METRICS.register("coverage")
@dataclass(frozen=True)
class Coverage(IdentityMetric):
    """Share of private pictures with a reconstruction near (k = 3)."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    of_set: ClassVar[bool] = True

    def __call__(self, judged: Judged) -> Tensor:
        return torch.tensor(neighbourhoods(judged.own_private, judged.features.flatten(0, 1)).coverage)


@METRICS.register("delta")
@dataclass(frozen=True)
class FaceDistance(IdentityMetric):
    """Least squared distance to a private picture, face embedding (δ)."""

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    reads: ClassVar[Literal["evaluator", "embedding", "second"]] = "embedding"

    def __call__(self, judged: Judged) -> Tensor:
        seen = _embedded(judged)
        return least_squared_distance(seen.features, seen.classes, seen.private, seen.labels)


@METRICS.register("attack-accuracy-embedder")
@dataclass(frozen=True)
class EmbedderAccuracy(IdentityMetric):
    """Share recognised by a face embedding."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    reads: ClassVar[Literal["evaluator", "embedding", "second"]] = "second"

    @property
    def name(self) -> str:
        return "attack-accuracy:embedder"

    def __call__(self, judged: Judged) -> Tensor:
        return AttackAccuracy()(_embedded(judged))


@METRICS.register("recognised-embedder")
@dataclass(frozen=True)
class EmbedderRecognised(IdentityMetric):
    """Share recognised by a face embedding, between chance (0) and that of real held-out pictures (1)."""

    more_leak: ClassVar[Literal["high", "low"]] = "high"
    reads: ClassVar[Literal["evaluator", "embedding", "second"]] = "second"

    @property
    def name(self) -> str:
        return "leak:embedder"

    def __call__(self, judged: Judged) -> Tensor:
        return Recognised()(_embedded(judged))


@METRICS.register("fid-identities")
@dataclass(frozen=True)
class PictureFrechet(IdentityMetric):
    """Fréchet distance to private pictures, features of a named network (Inception)."""

    network: str = "inception"

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    of_set: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return FrechetDistance(self.network).name

    def unavailable(self, root: Path | None) -> str | None:
        return FrechetDistance(self.network).unavailable(root)

    def __call__(self, judged: Judged) -> Tensor:
        if judged.guess is None or judged.pictures is None:
            raise ValueError("fid-identities compares pictures, and was handed only what an evaluator says")
        own = judged.pictures[torch.isin(judged.labels, judged.classes)]
        embed = EMBEDDINGS[self.network].load(judged.root, own.device)
        with torch.no_grad():
            features = [torch.cat([embed(part) for part in images.split(AT_ONCE)]) for images in (judged.guess, own)]
        return frechet_distance(*features)


def _embedded(judged: Judged) -> Judged:
    """As the face embedding sees it, under the names that are asked about now."""
    if judged.embedded is None:
        raise ValueError("no face embedding was asked for; set evaluator.embedder")
    return replace(judged.embedded, classes=judged.classes)


def recognition(judged: Judged, metrics: Iterable[Scored]) -> dict[str, Tensor]:
    """Every metric by name."""
    absent = [int(c) for c in judged.classes if not (judged.labels == c).any()]
    if absent:
        raise ValueError(f"no private picture of identity {absent[0]}; an identity that was never there cannot leak")
    return {m.name: m(judged).float().cpu() for m in metrics if isinstance(m, IdentityMetric)}
