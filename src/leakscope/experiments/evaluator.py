"""The evaluation network: trained on the private pictures, and never handed to an attack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
from leakscope.metrics.recognition import Judged
from leakscope.metrics.utility import accuracy
from leakscope.models.resolve import instantiate, resolve

#: A judge must recognise real pictures this many times more often than chance does.
LEAST_CEILING = 3
#: Its randomness is its own: no target has this seed.
SEED = 7_919


def _training() -> Training:
    return Training(epochs=30, augment=True)


class Evaluator(BaseModel):
    """Which network judges whether an identity was rebuilt; of another family than the target's."""

    model_config = ConfigDict(extra="forbid")

    model: str | dict[str, Any] = Field(
        default_factory=lambda: {"kind": "preact-resnet", "width": 24, "batch_norm": True},
        description="a network, as for the target",
    )
    resize: int | None = Field(
        default=None, ge=4, description="side in pixels of what it reads; the target's when left out"
    )
    training: Training = Field(default_factory=_training)
    pretraining: Pretraining | None = None


@dataclass(frozen=True)
class EvaluationNetwork:
    """A trained judge."""

    key: str
    split: SplitModel
    side: int
    record: dict[str, Any]  # its accuracy on held-out private pictures, and how it was made
    private: Tensor = field(repr=False)  # features of the private pictures
    labels: Tensor = field(repr=False)

    @torch.no_grad()
    def __call__(self, images: Tensor, batch: int = 256) -> tuple[Tensor, Tensor]:
        """Scores and features, N×C and N×d on the CPU."""
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

    @property
    def ceiling(self) -> float:
        return float(self.record["accuracy"])

    def judge(self, guess: Tensor, classes: Tensor, believed: Tensor) -> Judged:
        """What it says about class-major reconstructions; `believed` is what the target says."""
        count = len(classes)
        scores, features = self(guess)
        return Judged(
            classes=classes.cpu(), scores=scores.view(count, -1, scores.shape[-1]),
            features=features.view(count, -1, features.shape[-1]), believed=believed.cpu().view(count, -1),
            private=self.private, labels=self.labels, ceiling=self.ceiling,
        )  # fmt: skip


def _identity(config: Evaluator, splits: Splits) -> dict[str, Any]:
    return {
        "model": describe(resolve(config.model)), "training": describe(config.training),
        "side": config.resize or splits.private.shape[1], "pretraining": describe(config.pretraining),
        "private": splits.private.digest(), "public": splits.public.digest(),
    }  # fmt: skip


def evaluator_key(config: Evaluator, splits: Splits) -> str:
    """Identity of the judge, known before it is trained."""
    return digest(_identity(config, splits))


def evaluation_network(config: Evaluator, splits: Splits, root: Any, place: Workplace) -> EvaluationNetwork:
    """The judge of a plan, from the store or trained now."""
    architecture = resolve(config.model)
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
            split.eval()
            place.store.put("evaluator", key, _record(plain, vars(history), split, heldout), split.state_dict())
        else:
            split.load_state_dict(done.tensors())
    split.eval().requires_grad_(False)
    entry = place.store.get("evaluator", key)
    assert entry is not None
    chance = 1 / len(private.classes)
    if entry.record["accuracy"] < min(LEAST_CEILING * chance, 0.75):
        raise UsageError(
            f"the evaluation network recognises {entry.record['accuracy']:.0%} of real held-out pictures (chance "
            f"{chance:.0%}) and cannot judge; give evaluator.training more epochs or evaluator.model more width"
        )
    unfitted = EvaluationNetwork(key, split, side, entry.record, torch.empty(0), torch.empty(0))
    return EvaluationNetwork(key, split, side, entry.record, unfitted(private.images)[1], private.labels)


def _record(plain: dict[str, Any], history: dict[str, Any], split: SplitModel, heldout: ImageSet) -> dict[str, Any]:
    side = heldout.shape[1]
    scores, _ = EvaluationNetwork("", split, side, {}, torch.empty(0), torch.empty(0))(heldout.images)
    return {"plan": plain, "history": history, "accuracy": accuracy(scores, heldout.labels)}
