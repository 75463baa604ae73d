"""What an epoch of the sparse-coding architecture costs beside its undefended twin.

    python benchmarks/sca_epoch.py [--images 12000] [--part 1000] [--data-root FOLDER]

Both are the published end-to-end network (16 and 28 features, 5×5, five linear layers), trained by the
project's own loop in batches of 32: convolutions in one, sparse layers (λ = 0.25) in the other, with the
dictionary update after every step. The images are taken in parts, twin and sparse network turn by turn,
and their process times are added up: one process, one thread. The bar of 2.0 is set on the first epoch,
in which the codes of the first layer are computed; one part is passed a second time to show an epoch in
which they are remembered. Exit code 1 when the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Stack
from leakscope.core.model import SplitModel
from leakscope.data.npz import read_npz
from leakscope.defenses.none import NoDefense
from leakscope.defenses.sca import Sca
from leakscope.experiments.training import Training, train
from leakscope.models.sca_net import ScaNet

BAR = 2.0
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Clock(Defense):
    """Notes the process time at the start of every epoch."""

    kind_name = "clock"
    ticks: list[float] = field(default_factory=list)

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        self.ticks.append(time.process_time())


def seconds(defense: Defense, data: ImageSet, epochs: int) -> list[float]:
    """Process time of each epoch."""
    clock = Clock()
    stack = Stack((defense, clock))
    with seeds.ambient(0, "benchmark"):
        model = ScaNet().build(data.shape, len(data.classes))
        split = stack.rebuild(SplitModel(model, "fc4", defense=stack).eval(), data.images[:2])
    train(split, data, Training(epochs=epochs, batch=32), seed=0, device=CPU)
    ticks = [*clock.ticks, time.process_time()]
    return [after - before for before, after in pairwise(ticks)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--part", type=int, default=1_000)
    parser.add_argument("--data-root", type=Path, default=os.environ.get("LEAKSCOPE_DATA", "."))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = read_npz(Path(options.data_root) / "mnist.npz")
    twin = sparse = 0.0
    again: dict[str, float] = {}
    for begin in range(0, options.images, options.part):
        part = data.take(torch.arange(begin, min(begin + options.part, options.images)))
        epochs = 2 if begin == 0 else 1
        theirs, ours = seconds(NoDefense(), part, epochs), seconds(Sca(), part, epochs)
        twin, sparse = twin + theirs[0], sparse + ours[0]
        if epochs == 2:
            again = {"twin": theirs[1], "sca": ours[1]}
        print(
            f"{begin + len(part):6} images: twin {twin:7.1f} s, sca {sparse:7.1f} s, {sparse / twin:.2f}×", flush=True
        )
    print(f"remembered first layer: {again['sca'] / again['twin']:.2f}×")
    record = {"benchmark": "sca_epoch", "images": options.images, "twin": round(twin, 1), "sca": round(sparse, 1)}
    ratios = {"ratio": round(sparse / twin, 3), "remembered": round(again["sca"] / again["twin"], 3), "bar": BAR}
    print(json.dumps({**record, **ratios}))
    return 0 if sparse / twin <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
