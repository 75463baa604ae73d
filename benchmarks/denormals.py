"""What denormal numbers in gradients cost: the correction of `auto`, trained with them and without, in one run.

Target and attacker are those of `orthogonal.py`, undefended; both trainings begin alike, and take turns round by round.

- `ratio`: CPU seconds with denormals over those without, over all rounds;
- `late`: the same over the last round, in which activations have grown;
- `leak`, `leak_without`: validation leak after the last round.

    OMP_NUM_THREADS=1 python benchmarks/denormals.py [--passes 12] [--data-root DIR] [--store DIR]
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from orthogonal import FULL
from time_to_leak import CPU, PLACES, realise

from leakscope.attacks import _residual
from leakscope.attacks._campaign import Campaign
from leakscope.attacks._correction import Size
from leakscope.attacks._residual import Lessons, Run
from leakscope.core import seeds
from leakscope.core.threat import ThreatModel, grant
from leakscope.nn.denormals import denormals_as_zero
from leakscope.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=float, default=12)
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--store", type=Path, default=Path("build/orthogonal"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    place = next(place for place in PLACES if place.name == "cifar10")
    split, splits = realise(place, 1, asked.data_root, Store(asked.store))
    view = grant(split, ThreatModel(), splits.public, seeds.generator(0, "oracle"), classes=10, device=CPU)
    campaign = Campaign.begin(view, FULL, None, seeds.generator(0, "begin"))
    assert campaign is not None
    eyes, judge, offsets = campaign.read()
    contexts: dict[str, type[AbstractContextManager[None]] | object] = {"": nullcontext, "_without": denormals_as_zero}
    runs: dict[str, Run] = {}
    seconds: dict[str, list[float]] = {name: [] for name in contexts}
    for name in contexts:
        lessons = Lessons(
            eyes, campaign.releases, campaign.ours, offsets, FULL.copies, FULL.batch, seeds.generator(0, "lessons")
        )
        network = Size(*FULL.size).build(tuple(judge.features.shape[1:]), view.image_shape, 0)
        runs[name] = Run(network, judge, lessons, FULL.rates[0])
    length, left = FULL.passes[0], asked.passes
    while left > 0:
        for name, context in contexts.items():
            vars(_residual)["denormals_as_zero"] = context
            begun = time.process_time()
            run = runs[name]
            run.round(round(min(length, left) * run.lessons.steps), lambda error: True)
            seconds[name].append(time.process_time() - begun)
        told = "  ".join(f"{own[-1]:.0f} s" for own in seconds.values())
        print(f"{min(length, left):g} passes: {told}", flush=True)
        length, left = 2 * length, left - length
    figures = {f"leak{name}": campaign.watch.leak(run.error) for name, run in runs.items()}
    figures["ratio"] = sum(seconds[""]) / sum(seconds["_without"])
    figures["late"] = seconds[""][-1] / seconds["_without"][-1]
    print(json.dumps({"benchmark": "denormals", **figures}))


if __name__ == "__main__":
    main()
