"""Training a network on public pictures of other classes, before private ones reach it."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from leakscope.core import progress, seeds
from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._scoring import scoring_layer


@dataclass(frozen=True)
class Pretrained:
    """What the stage before training was."""

    pictures: int
    classes: int
    dropped: int  # classes that are private too
    accuracy: float  # on the pictures it was trained on, in the last epoch


def public_set(spec: str, private: ImageSet) -> tuple[ImageSet, int]:
    """The named set in the size and colours of `private`, without its classes; and how many of those there were."""
    root = os.environ.get("LEAKSCOPE_DATA")
    data = DATASETS.build(spec).load(Path(root) if root else None)
    own = {private.classes[label] for label in private.labels.unique().tolist()}
    kept = [label for label in data.labels.unique().tolist() if data.classes[label] not in own]
    dropped = len(data.labels.unique()) - len(kept)
    if len(kept) < 2:
        raise UsageError(f"tl-dmi: {spec!r} has fewer than two classes that are not private; pre-train on another set")
    known = torch.tensor(kept)
    data = data.take(torch.isin(data.labels, known).nonzero().flatten())
    labels = torch.searchsorted(known, data.labels)
    images, (channels, height, width) = data.images, private.shape
    if images.shape[2:] != (height, width):
        images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    classes = tuple(data.classes[label] for label in kept)
    return replace(data, images=images.clamp(0, 1).contiguous(), labels=labels, classes=classes), dropped


def pretrain(split: SplitModel, data: ImageSet, epochs: int, rate: float, rng: torch.Generator) -> float:
    """Train all of `split` but its scoring layer on `data`, through a scoring layer of its own that is thrown away.

    AdamW with a cosine schedule, batches of 64. Gives the accuracy of the last epoch.
    """
    name = scoring_layer(split, data.images[:2])
    if name is None:
        raise UsageError("tl-dmi: the scores of this network are not those of a linear layer; give trained weights")
    device = next(split.parameters()).device
    model = copy.deepcopy(split.model).train()
    own = model.get_submodule(name)
    assert isinstance(own, nn.Linear)
    with seeds.ambient(int(torch.randint(2**62, (), generator=rng)), "pretraining"):
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, nn.Linear(own.in_features, len(data.classes)).to(own.weight))
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-4)
        size = min(64, len(data))
        steps = len(data) // size
        hits = 0
        with progress.stage("pre-train", epochs * steps) as bar, torch.enable_grad():
            for epoch in range(epochs):
                order, hits = torch.randperm(len(data), generator=rng), 0
                for number in range(steps):
                    share = (epoch + (number + 0.5) / steps) / epochs
                    optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * share))
                    index = order[number * size : (number + 1) * size]
                    x, y = data.images[index].to(device), data.labels[index].to(device)
                    scores = model(split.normalize(x))
                    optimizer.zero_grad(set_to_none=True)
                    F.cross_entropy(scores, y).backward()
                    optimizer.step()
                    hits += int((scores.argmax(1) == y).sum())
                    bar.advance(1)
    learned = {key: value for key, value in model.state_dict().items() if not key.startswith(f"{name}.")}
    split.model.load_state_dict(learned, strict=False)
    return hits / (steps * size)
