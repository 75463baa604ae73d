"""What denormal numbers in gradients cost: a backward pass of `auto`'s correction with them and without.

Filters are scaled as training may make them grow: where a GELU's input lies far below zero its gradient underflows.
`ratio_N` is the time with denormals over that without for filters N times their usual size, each the least of three.
It shows the cost where they occur, and not how often they do: a training of 12 passes on the CIFAR-10 target of
`time_to_leak.py` met none (ratio 1.00, the same leak to the last digit), one on a CEM target spent some seventeen
times as long in backward as in forward passes.

    OMP_NUM_THREADS=1 python benchmarks/denormals.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from leakscope.attacks._correction import Correction, Size
from leakscope.nn.denormals import denormals_as_zero

GROWN = (1, 2, 3, 5, 10)


def network(grown: float) -> Correction:
    made = Size(48, 2, dense=False).build((16, 16, 16), (3, 32, 32), 0)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in made.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.normal_(0, grown * (2 / layer.weight[0].numel()) ** 0.5, generator=rng)
    return made


def seconds(made: Correction, z: Tensor, linear: Tensor, context: Callable[[], AbstractContextManager[None]]) -> float:
    taken = []
    for _ in range(3):
        error = (made(z, linear) - linear).square().mean()
        begun = time.process_time()
        with context():
            error.backward()
        taken.append(time.process_time() - begun)
    return min(taken)


def main() -> None:
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(1)
    z, linear = torch.randn(32, 16, 16, 16, generator=rng), torch.rand(32, 3, 32, 32, generator=rng)
    ratios = {}
    for grown in GROWN:
        made = network(grown)
        with_them, without = (seconds(made, z, linear, context) for context in (nullcontext, denormals_as_zero))
        print(
            f"filters {grown:3d} times as large: {1e3 * with_them:6.1f} ms, without denormals {1e3 * without:6.1f} ms"
        )
        ratios[f"ratio_{grown}"] = round(with_them / without, 2)
    print(json.dumps({"benchmark": "denormals", "ratios": ratios}))


if __name__ == "__main__":
    main()
