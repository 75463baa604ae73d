"""A step of DP-SGD with norms of linear layers from inputs and output gradients, and with per-sample gradients of all.

Both in one run, in turns, on the split network of SCA (rows and dense layer of 64: 3.2 million weights), batches of
32. `ratio` is CPU seconds of a step with per-sample gradients over those without; `same` the largest difference of
the two gradients as a share of the largest entry.

    OMP_NUM_THREADS=1 python benchmarks/dp_sgd.py [--steps 3]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Step
from leakscope.core.model import SplitModel
from leakscope.defenses import dp_sgd
from leakscope.defenses.dp_sgd import DpSgd, Linears
from leakscope.models.sca_net import ScaNet


class Nothing(Linears):
    """Leaves every layer to Opacus."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.layers, self.parameters = [], []


def steps(data: ImageSet, count: int, listening: Callable[[nn.Module], Linears]) -> tuple[float, Tensor]:
    """CPU seconds per step and the last gradient of the largest layer."""
    vars(dp_sgd)["Linears"] = listening
    defense = DpSgd()
    with seeds.ambient(0, "benchmark", "dp-sgd"):
        network = ScaNet(rows=(64,), dense=(64,)).build(data.shape, 10)
        split = defense.rebuild(SplitModel(network, "relu1", defense=defense), data.images[:2]).train()
    ledger = defense.setup(split, data, seeds.generator(0, "setup"))
    defense.before_epoch(split, ledger, data, 0)
    x, y = data.images[:32], data.labels[:32]
    begun = time.process_time()
    for number in range(count):
        out = split.run(x)
        loss, rng = F.cross_entropy(out.scores, y), seeds.generator(number, "step")
        step = Step(x, y, out.features, out.released, out.scores, loss, split, ledger, 0, 1, 0.1, rng)
        defense.backward(step.task_loss, step)
    gradient = split.model.get_parameter("fc2.weight").grad
    assert gradient is not None
    return (time.process_time() - begun) / count, gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    count = parser.parse_args().steps
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.rand(320, 1, 28, 28, generator=rng), torch.randint(10, (320,), generator=rng)
    data = ImageSet(images, labels, tuple(map(str, range(10))))
    taken: dict[str, list[float]] = {"all": [], "without": []}
    found = {}
    for _ in range(2):
        for name, listening in (("all", Nothing), ("without", Linears)):
            seconds, found[name] = steps(data, count, listening)
            taken[name].append(seconds)
    off = (found["all"] - found["without"]).abs().max() / found["all"].abs().max()
    figures = {"ratio": round(min(taken["all"]) / min(taken["without"]), 2), "same": float(off)}
    told = ", ".join(f"{name} {min(own):.3f} s" for name, own in taken.items())
    print(f"a step: {told}")
    print(json.dumps({"benchmark": "dp-sgd", **figures}))


if __name__ == "__main__":
    main()
