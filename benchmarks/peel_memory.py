"""Peak memory of exact peeling at 224 pixels: ResNet-18 of width 64 without stride, one picture, in its own process.

The tolerance is loose, so that every block takes few steps; one GMRES solve of the widest block follows, with
as many vectors as a hard block would keep. What is held at once is what a full run holds.

    python benchmarks/peel_memory.py [--side 224] [--width 64]
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import torch

from leakscope.attacks.peel_exact import PeelExact
from leakscope.attacks.peeling.krylov import gmres
from leakscope.attacks.peeling.take_apart import take_apart
from leakscope.core import seeds
from leakscope.core.attack import Observed, Prepared
from leakscope.core.data import ImageSet
from leakscope.core.model import Normalize, SplitModel
from leakscope.core.threat import ThreatModel, grant
from leakscope.models.preact import PreactResNetArchitecture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--width", type=int, default=64)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    shape = (3, asked.side, asked.side)
    architecture = PreactResNetArchitecture(width=asked.width, strided=False)
    with seeds.ambient(0, "benchmark", "peel"):
        model = architecture.build(shape, 10).eval()
    split = SplitModel(model, architecture.default_cuts[-1], normalize=Normalize((0.5,) * 3, (0.25,) * 3)).eval()
    public = ImageSet(torch.full((2, *shape), 0.5), torch.zeros(2, dtype=torch.int64), ("grey",))
    view = grant(split, ThreatModel(), public, seeds.generator(0, "grant"), classes=10, device=torch.device("cpu"))
    with torch.no_grad():
        features = split.encode(torch.rand(1, *shape, generator=seeds.generator(0, "picture")))
    attack = PeelExact(tolerance=0.02, shallow_iterations=3)
    attack.reconstruct(view, Prepared(), Observed(features), seeds.generator(0, "attack"))
    with torch.no_grad():
        _, jacobian = take_apart(split, shape).blocks[-1].linearise(features)
        jacobian.forward(features)
        gmres(lambda v: v + 0.1 * v.flip(1), features, iterations=60, tolerance=0.0)  # the basis, cheaply filled
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"side": asked.side, "width": asked.width, "peak_gb": round(peak / 1e9, 2),
                      "cpu_seconds": round(time.process_time(), 1)}))  # fmt: skip


if __name__ == "__main__":
    main()
