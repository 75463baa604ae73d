"""Who judges class attacks: a network trained on the private pictures, a face embedding, or both. No attack sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional as F

from leakscope.core import progress, seeds
from leakscope.core.data import ImageSet, Splits
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel, cuts
from leakscope.core.spec import describe, digest, label
from leakscope.data.images import resized
from leakscope.experiments.pretraining import Pretraining, pretrained, transplant
from leakscope.experiments.training import Training, train
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.embedder import CentroidJudge, FaceEmbedder, centroids
from leakscope.metrics.recognition import Judged
from leakscope.metrics.utility import accuracy
from leakscope.models.architecture import Architecture
from leakscope.models.resolve import instantiate, resolve
from leakscope.store import Store

#: A judge must recognise real pictures this many times more often than chance does.
LEAST_CEILING = 3
#: Its randomness is its own: no target has this seed.
SEED = 7_919


def _training() -> Training:
    return Training(epochs=30, augment=True)


class Evaluator(BaseModel):
    """Which network judges whether an identity was rebuilt; of another family than the target's."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | dict[str, Any] | None = Field(
        default=None, description="a network, as for the target; a preact-resnet of width 24 when no judge is named"
    )
    resize: int | None = Field(
        default=None, ge=4, description="side in pixels of what it reads; the target's when left out"
    )
    training: Training = Field(default_factory=_training, description="how it is trained, as for a target")
    pretraining: Pretraining | None = Field(default=None, description="a first training of its own")
    embedder: FaceEmbedder | str | None = Field(
        default=None,
        description="a face embedding in weights/ that judges by the nearest centroid; a second opinion beside model",
    )

    @property
    def embedding(self) -> FaceEmbedder | None:
        return FaceEmbedder(self.embedder) if isinstance(self.embedder, str) else self.embedder

    @property
    def judges(self) -> tuple[Literal["network", "embedder"], ...]:
        """Who judges, the first by default of the page: a network, unless only an embedder was asked for."""
        if self.embedder is None:
            return ("network",)
        return ("embedder",) if self.model is None else ("network", "embedder")

    @property
    def network(self) -> Architecture:
        return resolve(self.model or {"kind": "preact-resnet", "width": 24, "batch_norm": True})


#: Pictures to scores N×C and features N×d, both on the CPU.
See = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Reader:
    """A trained network as a judge reads it."""

    split: SplitModel
    side: int

    @torch.no_grad()
    def __call__(self, images: Tensor, batch: int = 256) -> tuple[Tensor, Tensor]:
        device = next(self.split.parameters()).device
        rng = seeds.generator(SEED, "evaluator", "run", device=device)
        scores, features = [], []
        for part in images.split(batch):
            part = part.to(device)
            if part.shape[-1] != self.side:
                part = F.interpolate(part, size=(self.side, self.side), mode="bilinear", antialias=True)
            ran = self.split.run(part.clamp(0, 1), rng)
            scores.append(ran.scores.cpu())
            features.append(ran.features.flatten(1).cpu())
        return torch.cat(scores), torch.cat(features)


@dataclass(frozen=True)
class Judge:
    """Who recognises rebuilt classes, with what it knows about the private pictures."""

    see: See
    ceiling: float  # share of held-out private pictures that it recognises
    pictures: ImageSet = field(repr=False)  # private
    private: Tensor = field(repr=False)  # their features
    root: Path | None = None
    second: Judge | None = None  # the face embedding, where one was asked for beside a network
    embeds: bool = False  # whether its own features are a face embedding

    def judge(self, guess: Tensor, classes: Tensor, believed: Tensor) -> Judged:
        """What it says about class-major reconstructions; `believed` is what the target says."""
        count = len(classes)
        scores, features = self.see(guess)
        said = Judged(
            classes=classes.cpu(), scores=scores.view(count, -1, scores.shape[-1]),
            features=features.view(count, -1, features.shape[-1]), believed=believed.cpu().view(count, -1),
            private=self.private, labels=self.pictures.labels, ceiling=self.ceiling,
            guess=guess.cpu(), pictures=self.pictures.images, root=self.root,
        )  # fmt: skip
        embedded = said if self.embeds else None if self.second is None else self.second.judge(guess, classes, believed)
        return replace(said, embedded=embedded)


def judge_keys(config: Evaluator, splits: Splits) -> dict[str, str]:
    """Identity of each judge, known before it is made: network, embedder, or both."""
    identities: dict[str, Callable[[Evaluator, Splits], dict[str, Any]]] = {
        "network": _identity, "embedder": _embedder_identity
    }  # fmt: skip
    return {name: digest(identities[name](config, splits)) for name in config.judges}


def evaluator_key(config: Evaluator, splits: Splits) -> str:
    """Identity of all judges of a plan together."""
    keys = list(judge_keys(config, splits).values())
    return keys[0] if len(keys) == 1 else digest({"judges": keys})


def ceilings(config: Evaluator, splits: Splits, store: Store) -> dict[str, float]:
    """How often each judge recognises real held-out pictures; none where it is not made yet.

    A pack holds this figure of a judge, its `ceiling`, and not the judge.
    """
    keys = judge_keys(config, splits)
    entries = {name: store.get("evaluator", key) or store.get("ceiling", key) for name, key in keys.items()}
    return {name: float(entry.record["accuracy"]) for name, entry in entries.items() if entry is not None}


def judge_for(config: Evaluator, splits: Splits, root: Path | None, place: Workplace) -> Judge:
    """The judge of a plan, from the store or made now, with its second opinion."""
    made = [_MAKERS[name](config, splits, root, place) for name in config.judges]
    return made[0] if len(made) == 1 else replace(made[0], second=made[1])


def _identity(config: Evaluator, splits: Splits) -> dict[str, Any]:
    return {
        "model": describe(config.network), "training": describe(config.training),
        "side": config.resize or splits.private.shape[1], "pretraining": describe(config.pretraining),
        "private": splits.private.digest(), "public": splits.public.digest(),
    }  # fmt: skip


def _embedder_identity(config: Evaluator, splits: Splits) -> dict[str, Any]:
    pictures = {name: getattr(splits, name).digest() for name in ("private", "heldout")}
    return {"embedder": describe(config.embedding), **pictures}


def _embedder(config: Evaluator, splits: Splits, root: Path | None, place: Workplace) -> Judge:
    """The nearest centroid of a face embedding; private pictures are embedded once and kept."""
    assert config.embedding is not None
    embed = config.embedding.load(root)
    private, heldout = splits.private, splits.heldout
    plain = _embedder_identity(config, splits)
    key = digest(plain)
    with place.store.claim("evaluator", key) as done:
        if done is None:
            progress.say(f"embedding {len(private)} private pictures")
            judge = CentroidJudge.fitted(embed, private.images, private.labels, len(private.classes))
            right = accuracy(judge(heldout.images)[0], heldout.labels)
            place.store.put("evaluator", key, {"plan": plain, "accuracy": right}, {"private": judge.private})
    entry = place.store.get("evaluator", key)
    assert entry is not None
    right, features = _good_enough(entry.record["accuracy"], "face embedding", splits), entry.tensors()["private"]
    centres = centroids(features, private.labels, len(private.classes))
    see = CentroidJudge(embed, centres, features, private.labels)
    return Judge(see, right, private, features, root, embeds=True)


def _network(config: Evaluator, splits: Splits, root: Path | None, place: Workplace) -> Judge:
    """A network trained on the private pictures, of another family than the target's."""
    architecture = config.network
    side = config.resize or splits.private.shape[1]
    private, heldout = (
        resized(part, side) if side != part.shape[1] else part for part in (splits.private, splits.heldout)
    )
    with seeds.ambient(SEED, "evaluator", "init"):
        model = instantiate(architecture, private.shape, len(private.classes))
    # Its features are those of the last place where it can be cut: the penultimate layer.
    cut = cuts(model.eval(), private.images[:2], architecture.normalization())[-1].name
    split = SplitModel(model, cut, normalize=architecture.normalization()).to(place.device)
    plain = _identity(config, splits)
    key = digest(plain)
    with place.store.claim("evaluator", key) as done:
        if done is None:
            progress.say(f"training the evaluation network {label(architecture)}")
            if config.pretraining is not None:
                public = resized(splits.public, side) if side != splits.public.shape[1] else splits.public
                pictures = config.pretraining.pictures(public, root)
                transplant(pretrained(architecture, config.pretraining, pictures, cut, SEED, place), split)
            checkpoint = place.store.scratch("evaluator", key) / "checkpoint.pt"
            split, history, _ = train(
                split, private, config.training, seed=SEED, device=place.device, checkpoint=checkpoint
            )
            right = accuracy(_Reader(split.eval(), side)(heldout.images)[0], heldout.labels)
            record = {"plan": plain, "history": vars(history), "accuracy": right}
            place.store.put("evaluator", key, record, split.state_dict())
        else:
            split.load_state_dict(done.tensors())
    see = _Reader(split.eval().requires_grad_(False), side)
    entry = place.store.get("evaluator", key)
    assert entry is not None
    right = _good_enough(entry.record["accuracy"], "evaluation network", splits)
    return Judge(see, right, splits.private, see(private.images)[1], root)


_MAKERS: dict[str, Callable[[Evaluator, Splits, Path | None, Workplace], Judge]] = {
    "network": _network,
    "embedder": _embedder,
}


def _good_enough(right: float, who: str, splits: Splits) -> float:
    """Report the judge's accuracy on real pictures (the ceiling of its scores); refuse one near chance."""
    chance = 1 / len(splits.private.classes)
    if right < min(LEAST_CEILING * chance, 0.75):
        raise UsageError(
            f"the {who} recognises {right:.0%} of real held-out pictures (chance {chance:.0%}) and cannot judge; give "
            "evaluator.training more epochs or evaluator.model more width, or choose another evaluator"
        )
    progress.say(f"the {who} recognises {right:.1%} of {len(splits.heldout)} real held-out pictures")
    return right
