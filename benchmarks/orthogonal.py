"""Orthogonal steps against Adam: the correction of `auto`, on one target and one thread, in one run.

The target is that of `time_to_leak.py` named `cifar10` (vgg11-sgm, undefended or with noise at the cut). Both
optimisers train the same network from the same start on the same stream of pictures, for rounds of 4, 8 and 16 passes;
Adam with batches of 16 and 32, the better counts. Figures:

- `adam`, `orthogonal`: validation leak after the last round; `adam_seconds`, `orthogonal_seconds`: CPU time;
- `ratio`: Adam's CPU seconds over those after which orthogonal steps had passed Adam's last leak.

    OMP_NUM_THREADS=1 python benchmarks/orthogonal.py [--sigma 0.1] [--passes 28] [--data-root DIR] [--store DIR]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from time_to_leak import CPU, PLACES, realise

from leakscope.attacks import auto
from leakscope.attacks._campaign import Campaign
from leakscope.attacks._correction import Correction, Size
from leakscope.attacks._residual import Judge, Lessons, Run
from leakscope.core import seeds
from leakscope.core.threat import ThreatModel, grant
from leakscope.store import Store

FULL = auto._EFFORTS["full"]
Curve = list[tuple[float, float]]  # CPU seconds, validation leak


class AdamRun(Run):
    """The same training with every weight in Adam's hands, as it was before."""

    def __init__(self, network: Correction, judge: Judge, lessons: Lessons, rate: float) -> None:
        super().__init__(network, judge, lessons, rate)
        wide = [p for p in self.weights if p.ndim == 2]
        others = [p for p in self.weights if p.ndim != 2]
        groups = [{"params": others, "share": 1.0}, {"params": wide, "share": 0.2}]
        groups = [group for group in groups if group["params"]]
        self.optimizers = (torch.optim.AdamW(groups, lr=self.rate, weight_decay=1e-4, fused=True),)


def trained(kind: type[Run], campaign: Campaign, judge: Judge, lessons: Lessons, rate: float, passes: float) -> Curve:
    network = Size(*FULL.size).build(tuple(judge.features.shape[1:]), campaign.view.image_shape, 0)
    run = kind(network, judge, lessons, rate)
    curve: Curve = []
    begun = time.process_time()

    def look(error: float) -> bool:
        curve.append((time.process_time() - begun, campaign.watch.leak(error)))
        return True

    length, left = FULL.passes[0], passes
    while left > 0:
        run.round(round(min(length, left) * lessons.steps), look)
        length, left = 2 * length, left - length
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sigma", type=float, default=0.1, help="noise at the cut; 0 for none")
    parser.add_argument("--passes", type=float, default=28)
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--store", type=Path, default=Path("build/orthogonal"))
    asked = parser.parse_args()
    place = next(place for place in PLACES if place.name == "cifar10")
    if asked.sigma:
        place = replace(place, defense=f"gaussian:sigma={asked.sigma}")
    split, splits = realise(place, 1, asked.data_root, Store(asked.store))
    view = grant(split, ThreatModel(), splits.public, seeds.generator(0, "oracle"), classes=10, device=CPU)
    campaign = Campaign.begin(view, FULL, None, seeds.generator(0, "begin"))
    assert campaign is not None
    eyes, judge, offsets = campaign.read()
    curves: dict[str, Curve] = {}
    for name, kind, batch, rate in (
        ("adam, batches of 16", AdamRun, 16, 2e-3), ("adam, batches of 32", AdamRun, 32, 3e-3),
        ("orthogonal", Run, FULL.batch, FULL.rates[1]),
    ):  # fmt: skip
        rng = seeds.generator(0, "lessons")
        lessons = Lessons(eyes, campaign.releases, campaign.ours, offsets, FULL.copies, batch, rng)
        curves[name] = trained(kind, campaign, judge, lessons, rate, asked.passes)
        told = "  ".join(f"{seconds:.0f} s {leak:.4f}" for seconds, leak in curves[name])
        print(f"{name:22s} {told}", flush=True)
    ours = curves.pop("orthogonal")
    adam = max(curves.values(), key=lambda curve: curve[-1][1])
    passed = next((seconds for seconds, leak in ours if leak >= adam[-1][1]), None)
    figures = {
        "linear": campaign.watch.leak(judge(None)), "adam": adam[-1][1], "adam_seconds": adam[-1][0],
        "orthogonal": ours[-1][1], "orthogonal_seconds": ours[-1][0],
        "ratio": None if passed is None else adam[-1][0] / passed,
    }  # fmt: skip
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
