"""Published PEEL against ours: time and PSNR per image, one thread, one run.

(a) eight blocks without stride, width 16, 32×32, default weights: peel against peel-exact;
(b) the strided ResNet-18 of pre-activation blocks, width 64, 32×32, default and Xavier weights: peel against
    e2e-lbfgs;
(c) the same with a 7×7 stride-2 stem and ReLU, 64×64, 0.67 of the dimensions left: peel against e2e-lbfgs.

Seconds are CPU time of this process, so that other jobs on the machine count little. Published PEEL runs on one
picture (it takes about a minute each), ours on the same picture for the ratio and on four for the PSNR. Pictures
are crops of the two photographs that come with scikit-learn.

    python benchmarks/peel.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.e2e_lbfgs import EndToEnd
from leakscope.attacks.peel import Peel
from leakscope.attacks.peel_exact import PeelExact
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed, Prepared
from leakscope.core.data import ImageSet
from leakscope.core.model import Normalize, SplitModel
from leakscope.core.threat import ThreatModel, View, grant
from leakscope.models.preact import PreactResNetArchitecture

CORNERS = ((20, 60), (180, 300), (100, 180), (10, 400), (200, 80), (60, 250), (130, 420), (220, 210))


def pictures(count: int, side: int) -> Tensor:
    """Square crops of two photographs, reduced by averaging."""
    from sklearn.datasets import load_sample_images

    photographs = [torch.tensor(image).permute(2, 0, 1).float() / 255 for image in load_sample_images().images]
    crops = [
        photographs[place % 2][:, top : top + 192, left : left + 192]
        for place, (top, left) in enumerate(corner for corner in CORNERS for _ in range(2))
    ]
    size = 192 // side * side
    stacked = torch.stack(crops[:count])[..., :size, :size]
    return torch.nn.functional.avg_pool2d(stacked, 192 // side)


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    return -10 * torch.log10((guess - truth).square().flatten(1).mean(1))


def target(architecture: PreactResNetArchitecture, side: int) -> tuple[SplitModel, View]:
    with seeds.ambient(0, "benchmark", "peel"):
        model = architecture.build((3, side, side), 10).eval()
    split = SplitModel(model, architecture.default_cuts[-1], normalize=Normalize((0.5,) * 3, (0.25,) * 3)).eval()
    public = ImageSet(torch.full((2, 3, side, side), 0.5), torch.zeros(2, dtype=torch.int64), ("grey",))
    rng = seeds.generator(0, "benchmark", "grant")
    return split, grant(split, ThreatModel(), public, rng, classes=10, device=torch.device("cpu"))


def run(attack: Attack, view: View, features: Tensor) -> tuple[Tensor, float]:
    """Pictures and CPU seconds."""
    start = time.process_time()
    rng = seeds.generator(0, "benchmark", "attack")
    images = attack.reconstruct(view, Prepared(), Observed(features), rng).images
    return images, time.process_time() - start


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    architecture: PreactResNetArchitecture
    side: int
    ours: Attack
    wanted_psnr: float
    wanted_ratio: float


CASES = (
    Case("a", "8 blocks, no stride, width 16, 32×32, default", PreactResNetArchitecture(width=16, strided=False), 32,
         PeelExact(), 100, 60),
    Case("b_default", "ResNet-18 strided, width 64, 32×32, default", PreactResNetArchitecture(), 32, EndToEnd(), 38, 5),
    Case("b_xavier", "ResNet-18 strided, width 64, 32×32, Xavier", PreactResNetArchitecture(init="xavier"), 32,
         EndToEnd(), 38, 5),
    Case("c", "7×7 stride-2 stem + ReLU, width 64, 64×64, default",
         PreactResNetArchitecture(stem="conv7", stem_activation=True), 64, EndToEnd(), 22, 5),
)  # fmt: skip


def compare(case: Case, steps: int, more: int) -> dict[str, float]:
    split, view = target(case.architecture, case.side)
    truth = pictures(more, case.side)
    with torch.no_grad():
        features = split.encode(truth)
    peeled, slow = run(Peel(steps=steps), view, features[:1])
    one, fast = run(case.ours, view, features[:1])
    rest, _ = run(case.ours, view, features[1:])
    ours = psnr(torch.cat([one, rest]), truth)
    print(f"({case.name}) {case.title}")
    print(f"    peel       {psnr(peeled, truth[:1])[0]:6.1f} dB {slow:8.2f} s   (1 picture, {steps} steps a block)")
    print(
        f"    {case.ours.kind_name:10s} {ours.mean():6.1f} dB {fast:8.2f} s   ({len(ours)} pictures, worst "
        f"{ours.min():.1f} dB; bar {case.wanted_psnr:g} dB)"
    )
    print(f"    ratio      {slow / fast:6.1f}×   (bar {case.wanted_ratio:g}×)", flush=True)
    return {"speedup": slow / fast, "psnr": float(ours.mean()), "worst_psnr": float(ours.min()),
            "peel_psnr": float(psnr(peeled, truth[:1])[0]), "peel_seconds": slow, "seconds": fast}  # fmt: skip


def batched(case: Case, count: int) -> float:
    """Time of `count` pictures together over that of the same one by one."""
    split, view = target(case.architecture, case.side)
    with torch.no_grad():
        features = split.encode(pictures(count, case.side))
    singly = sum(run(case.ours, view, row)[1] for row in features.split(1))
    _, together = run(case.ours, view, features)
    print(f"(batch) {case.ours.kind_name} on {count} pictures: {together:.2f} s together, {singly:.2f} s one by one, "
          f"{together / singly:.2f}× (bar 0.75×)", flush=True)  # fmt: skip
    return together / singly


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 steps a block of peel: checks that it runs, no more")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES), help="a, b_default, b_xavier, c")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    chosen = [case for case in CASES if case.name in arguments.cases.split(",")]
    steps, more = (20, 2) if arguments.quick else (2000, 4)
    ratios: dict[str, float] = {}
    for case in chosen:
        ratios |= {f"{case.name}_{key}": round(value, 3) for key, value in compare(case, steps, more).items()}
    if "a" in arguments.cases.split(","):
        ratios["batch16"] = round(batched(CASES[0], 16), 3)
    seconds = round(time.process_time() - begun, 1)
    print(json.dumps({"benchmark": "peel", "ratios": ratios, "seconds": seconds}))


if __name__ == "__main__":
    main()
