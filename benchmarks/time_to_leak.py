"""Leak against CPU seconds: `auto` against every attack of the full suite, on six targets, in one run.

mnist5k convnet undefended at features.2 (early) and at features.7 (late), with Gaussian noise σ = 0.5 and 3 at the
late cut, CIFAR-10 vgg11-sgm (width 0.25, 4,000 private pictures), and the sparse-coding architecture (λ = 0.5) on
mnist5k. Seconds are CPU time of this process, preparing and rebuilding 64 victims together. Two figures a target:

- `ahead`: leak of `auto` minus that of the best other attack that took no more CPU seconds than `auto` did;
- `share`: CPU seconds after which `auto` has reached the best leak of the whole old suite, over the CPU seconds of
  that suite. `auto` is run with growing ceilings of seconds; the first that reaches the leak counts, whole.

    python benchmarks/time_to_leak.py [--quick] [--targets late,sigma3] [--data-root DIR] [--store DIR]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.auditing.floors import class_means
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack, Observed
from leakscope.core.data import DATASETS, ImageSet, Splits
from leakscope.core.defense import build_defense
from leakscope.core.metric import Reference
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.spec import Plain, describe, digest, label
from leakscope.core.threat import ThreatModel, View, grant
from leakscope.data.splits import SplitPlan
from leakscope.metrics.pixel import Leak
from leakscope.models.architecture import MODELS
from leakscope.pipeline.train import Training, train
from leakscope.store import Store

CPU = torch.device("cpu")
VICTIMS = 64

#: The full suite as it was before `auto`.
OLD_SUITE: tuple[str | Plain, ...] = (
    "ridge",
    {"kind": "decoder", "capacity": "small", "steps": 400},
    {"kind": "decoder", "capacity": "medium", "steps": 400},
    {"kind": "decoder", "capacity": "large", "steps": 400},
    {"kind": "decoder", "front": "dense", "steps": 400},
    {"kind": "decoder", "front": "residual", "steps": 400},
    {"kind": "decoder", "loss": "random-conv", "steps": 400},
    "decoder-gan",
    "search",
    {"kind": "search", "tv": 1e-2},
    "peel-exact",
    "e2e-lbfgs",
    "analytic-sparse",
)


@dataclass(frozen=True)
class Place:
    """One target: everything that decides its weights."""

    name: str
    data: str
    model: str | Plain
    cut: str
    defense: str = "none"
    splits: SplitPlan = field(default_factory=SplitPlan)
    training: Training = field(default_factory=lambda: Training(epochs=10, learning_rate=0.003))

    def plain(self) -> Plain:
        parts = {"model": self.model, "training": describe(self.training), "splits": vars(self.splits)}
        return {"name": self.name, "data": self.data, "cut": self.cut, "defense": self.defense, **parts}


SPLIT_NET: Plain = {"kind": "sca-net", "channels": [8, 14], "rows": [16], "dense": [32]}
PLACES = (
    Place("early", "mnist5k", "convnet", "features.2"),
    Place("late", "mnist5k", "convnet", "features.7"),
    Place("sigma0.5", "mnist5k", "convnet", "features.7", "gaussian:sigma=0.5"),
    Place("sigma3", "mnist5k", "convnet", "features.7", "gaussian:sigma=3.0"),
    Place("cifar10", "cifar10", {"kind": "vgg11-sgm", "width": 0.25}, "client",
          splits=SplitPlan(4000, 1500, 4500),
          training=Training(epochs=4, batch=128, optimizer="sgd", learning_rate=0.02, weight_decay=5e-4)),
    Place("sca", "mnist5k", SPLIT_NET, "relu1", "sca:sparsity=0.5",
          training=Training(epochs=4, batch=32, optimizer="sgd", learning_rate=0.004, weight_decay=1e-3,
                            schedule="constant", warmup=0.0)),
)  # fmt: skip


def realise(place: Place, root: Path, store: Store) -> tuple[SplitModel, Splits]:
    """The trained target, from the store when it is there."""
    splits = place.splits.draw(DATASETS.build(place.data).load(root), seed=0)
    architecture = MODELS.build(place.model)
    with seeds.ambient(0, "target", "init"):
        model = architecture.build(splits.private.shape, len(splits.private.classes))
        split = SplitModel(
            model, place.cut, normalize=architecture.normalization(), defense=build_defense(place.defense)
        )
        split = split.defense.rebuild(split.eval(), splits.public.images[:2])
    key = digest(place.plain())
    with store.claim("trained", key) as done:
        if done is None:
            split, _, _ = train(split, splits.private, place.training, seed=0, device=CPU)
            store.put("trained", key, {"plan": place.plain()}, split.state_dict())
        else:
            split.load_state_dict(done.tensors())
    return split.eval().requires_grad_(False), splits
