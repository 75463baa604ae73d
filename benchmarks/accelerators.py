"""What accelerators, memory and speed cost, as ratios of one run.

    python benchmarks/accelerators.py [--skip memory] [--images 64]

- round trips: how often each attack makes an accelerator wait, per what it may (20, and one for each update of its
  progress bar), counted on the simulated device;
- sparse coding: the reference's time over ours, in torch and compiled;
- decoder: floating-point operations per second of training over those of a large matrix product;
- memory: the peak of each attack of the quick suite on a ResNet-50 with 224 pixels, over 8 GB (memory_224.py);
- scheduler: the cost of a job among 10,000 over that among 1,000.

Times are processor time on one thread. Ratios of two times measured turn by turn hold on a busy machine too, within
some 20 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from leakscope.core import progress, seeds
from leakscope.core.attack import ATTACKS, Observed
from leakscope.experiments.selftest import residual_split
from leakscope.testing import device, small
from leakscope.testing.synthetic import CLASSES, small_split, small_view, smooth_images

ALLOWED = 20


class Counter:
    """Counts updates of progress."""

    def __init__(self) -> None:
        self.updates = 0

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.updates += 1

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Counter]:
        yield self

    def say(self, text: str) -> None:
        pass


def round_trips() -> dict[str, float]:
    """Waits and copies of every attack, over what it may take."""
    why = device.unavailable()
    if why is not None:
        print(f"round trips: {why}", file=sys.stderr)
        return {}
    place, found = torch.device("sim:1"), {}
    for name, spec in small.ATTACKS.items():
        attack, counter = ATTACKS.build({"kind": name, **spec}), Counter()
        split = (residual_split() if name in small.RESIDUAL else small_split()).to(place)
        view = small_view(attack.needs, device=place, split=split, public=16 if name in small.RESIDUAL else 160)
        with torch.no_grad():
            features = split.release(smooth_images(6, "victims").to(place), seeds.generator(0, "v", device=place))
        classes = torch.arange(CLASSES, device=place)
        seen = Observed(classes=classes) if attack.goal == "identities" else Observed(features=features)
        if hasattr(attack, "prior"):
            view.prior(attack.prior)
        with progress.listening(counter), device.counted() as counts:
            prepared = attack.prepare(view, seeds.generator(0, "prepare", device=place))
            attack.reconstruct(view, prepared, seen, seeds.generator(0, "reconstruct", device=place))
        found[name] = round(counts.round_trips / (ALLOWED + counter.updates), 2)
    return found


def best(work: Callable[[], object], repeats: int = 3) -> float:
    """The least processor time of some runs."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def sparse(images: int) -> dict[str, dict[str, float]]:
    """The reference's time over ours, and the compiled sweep's gain over torch."""
    import sparse_coding as bench

    found = {}
    for case in bench.cases(images):
        short, long = (
            best(lambda case=case: case.reference(bench.SHORT)),
            best(lambda case=case: case.reference(bench.LONG)),
        )
        reference = (long - short) / (bench.LONG - bench.SHORT) * bench.REFERENCE.iterations
        took = {}
        for switch in ("0", "1"):
            os.environ["LEAKSCOPE_COMPILED"] = switch
            case.ours()  # builds it
            took[switch] = best(case.ours)
        os.environ["LEAKSCOPE_COMPILED"] = "0"
        found[case.name] = {
            "torch": round(reference / took["0"]), "compiled": round(reference / took["1"]),
            "compiled over torch": round(took["0"] / took["1"], 2),
        }  # fmt: skip
    return found


def decoder() -> dict[str, float]:
    """Operations per second while a decoder trains, over those of a matrix product of 1024×1024."""
    from torch.nn.functional import mse_loss
    from torch.utils.flop_counter import FlopCounterMode

    from leakscope.attacks._decoders import FRONTS

    matrix = torch.randn(1024, 1024)
    gemm = 2 * 1024**3 / best(lambda: matrix @ matrix, 10)
    found = {}
    for name, shape, image in (("32 pixels", (32, 16, 16), (3, 32, 32)), ("64 pixels", (64, 16, 16), (3, 64, 64))):
        body = FRONTS["conv"](shape, image, "medium").to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(body.parameters(), 1e-3, fused=True)
        z, x = torch.randn(16, *shape), torch.rand(16, *image)

        def step(body: Any = body, optimizer: Any = optimizer, z: Any = z, x: Any = x) -> None:
            optimizer.zero_grad()
            mse_loss(body(z), x).backward()
            optimizer.step()

        with FlopCounterMode(display=False) as counter:
            step()
        found[name] = round(counter.get_total_flops() / best(step, 5) / gemm, 2)
    return found


def memory(victims: int = 2, public: int = 64) -> dict[str, Any]:
    """Peaks over 8 GB; what could not run says why."""
    script = str(Path(__file__).with_name("memory_224.py"))
    command = [sys.executable, script, "--victims", str(victims), "--public", str(public)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {
        row["attack"]: round(row["peak_gb"] / 8, 2) if "peak_gb" in row else row.get("left_out") or row.get("failed")
        for row in rows
    }


def scheduler() -> dict[str, float]:
    """Milliseconds per job among 1,000 and among 10,000, and their ratio: one, where cost grows linearly."""
    import bench_scaling

    with tempfile.TemporaryDirectory() as folder:
        few, many = (
            bench_scaling.overhead(Path(folder) / str(targets), targets=targets)["ms a job"] for targets in (50, 500)
        )
    return {"1,000 jobs, ms each": few, "10,000 jobs, ms each": many, "ratio": round(many / few, 2)}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "round trips": lambda options: round_trips(),
    "sparse": lambda options: sparse(options.images),
    "decoder": lambda options: decoder(),
    "scheduler": lambda options: scheduler(),
    "memory": lambda options: memory(),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip", action="append", default=[], choices=list(PARTS))
    parser.add_argument("--images", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device.unavailable()  # PyTorch counts its accelerators at its first backward pass
    found = {}
    for name, part in PARTS.items():
        if name not in options.skip:
            found[name] = part(options)
            print(json.dumps({name: found[name]}, ensure_ascii=False), flush=True)
    over = [name for name, share in found.get("round trips", {}).items() if share > 1]
    if over:
        print(f"above the limit of round trips: {', '.join(over)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
