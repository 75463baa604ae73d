"""Published PEEL against ours: time and PSNR per image, one thread, one run.

(a) eight blocks without stride, width 16, 32×32, default weights: peel against peel-exact;
(b) the strided ResNet-18 of pre-activation blocks, width 64, 32×32, default and Xavier weights: peel against
    e2e-lbfgs;
(c) the same with a 7×7 stride-2 stem and ReLU, 64×64, 0.67 of the dimensions left: peel against e2e-lbfgs;
(xavier) as (a), with Xavier weights: errors of the blocks grow, and the whole network finishes them;
(trained) eight narrow blocks without stride, trained (`peel_target.py`), 24×24: peel against e2e-lbfgs;
(trained_strided) the strided ResNet-18 of width 32, trained to 75 % on CIFAR-10, 32×32, the median of eight pictures;
(memory) peak memory of peel-exact at 224 pixels without stride (`peel_memory.py`, a process of its own).

The trained cases need `--data-root` with CIFAR-10; their networks are kept in `--targets`, and trained when they are
not there (a minute and a quarter of an hour). Seconds are CPU time of this process, so that other jobs on the
machine count little. Published PEEL runs on one picture (it takes about a minute each), ours on the same picture
for the ratio and on four for the PSNR. Pictures are crops of the two photographs that come with scikit-learn, and
for trained targets pictures of the test set.

    python benchmarks/peel.py [--quick] [--cases a,xavier] [--data-root DATA_ROOT --targets runs/peel-targets]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from peel_target import RECIPES, Recipe, data, train
from torch import Tensor, nn

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


def target(
    architecture: PreactResNetArchitecture, side: int, model: nn.Module | None = None
) -> tuple[SplitModel, View]:
    if model is None:
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
    recipe: str = ""  # of a trained target


CASES = (
    Case("a", "8 blocks, no stride, width 16, 32×32, default", PreactResNetArchitecture(width=16, strided=False), 32,
         PeelExact(), 100, 60),
    Case("b_default", "ResNet-18 strided, width 64, 32×32, default", PreactResNetArchitecture(), 32, EndToEnd(), 38, 5),
    Case("b_xavier", "ResNet-18 strided, width 64, 32×32, Xavier", PreactResNetArchitecture(init="xavier"), 32,
         EndToEnd(), 38, 5),
    Case("c", "7×7 stride-2 stem + ReLU, width 64, 64×64, default",
         PreactResNetArchitecture(stem="conv7", stem_activation=True), 64, EndToEnd(), 22, 5),
    Case("xavier", "8 blocks, no stride, width 16, 32×32, Xavier",
         PreactResNetArchitecture(width=16, strided=False, init="xavier"), 32, PeelExact(), 105, 5),
    Case("trained", "8 blocks, no stride, width 4, 24×24, trained", RECIPES["no-stride"].architecture, 24,
         EndToEnd(), 50, 5, "no-stride"),
    Case("trained_strided", "ResNet-18 strided, width 32, 32×32, trained", RECIPES["strided"].architecture, 32,
         EndToEnd(), 28, 5, "strided"),
)  # fmt: skip


def trained(recipe: Recipe, path: Path, root: Path, count: int) -> tuple[nn.Module, Tensor, float]:
    """The network, pictures it never saw, and its accuracy; trained now if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    train(recipe, root, path)
    network, accuracy = recipe.load(path)
    return network, data(root, recipe.side)[2][:count].float() / 255, accuracy


def compare(case: Case, steps: int, more: int, targets: Path, root: Path | None) -> dict[str, float]:
    model, accuracy = None, {}
    if case.recipe:
        if root is None:
            raise SystemExit(f"case {case.name} needs --data-root with cifar10.npz, or LEAKSCOPE_DATA")
        kept = targets / f"peel-{case.recipe}.pt"
        model, truth, right = trained(RECIPES[case.recipe], kept, root, 2 * more)
        accuracy = {"accuracy": right}
    else:
        truth = pictures(more, case.side)
    split, view = target(case.architecture, case.side, model)
    with torch.no_grad():
        features = split.encode(truth)
    peeled, slow = run(Peel(steps=steps), view, features[:1])
    one, fast = run(case.ours, view, features[:1])
    rest, _ = run(case.ours, view, features[1:])
    ours = psnr(torch.cat([one, rest]), truth)
    print(f"({case.name}) {case.title}" + "".join(f", accuracy {right:.3f}" for right in accuracy.values()))
    print(f"    peel       {psnr(peeled, truth[:1])[0]:6.1f} dB {slow:8.2f} s   (1 picture, {steps} steps a block)")
    print(
        f"    {case.ours.kind_name:10s} {ours.mean():6.1f} dB {fast:8.2f} s   ({len(ours)} pictures, median "
        f"{ours.median():.1f} dB, worst {ours.min():.1f} dB; bar {case.wanted_psnr:g} dB)"
    )
    print(f"    ratio      {slow / fast:6.1f}×   (bar {case.wanted_ratio:g}×)", flush=True)
    return {"speedup": slow / fast, "psnr": float(ours.mean()), "worst_psnr": float(ours.min()),
            "median_psnr": float(ours.median()), **accuracy,
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


def memory(*, quick: bool) -> float:
    """Peak gigabytes of exact peeling at 224 pixels."""
    command = [sys.executable, str(Path(__file__).with_name("peel_memory.py")), *(["--width", "4"] if quick else [])]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(told.splitlines()[-1])
    print(f"(memory) peel-exact, 224×224, no stride, width {found['width']}: {found['peak_gb']:.2f} GB (bar 8 GB), "
          f"{found['cpu_seconds']:.0f} s", flush=True)  # fmt: skip
    return float(found["peak_gb"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 steps a block of peel: checks that it runs, no more")
    names = [*(case.name for case in CASES), "memory"]
    parser.add_argument("--cases", default=",".join(names), help=", ".join(names))
    parser.add_argument("--targets", type=Path, default=Path("runs/peel-targets"), help="folder of trained networks")
    root = os.environ.get("LEAKSCOPE_DATA")
    parser.add_argument("--data-root", type=Path, default=Path(root) if root else None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    chosen = [case for case in CASES if case.name in arguments.cases.split(",")]
    steps, more = (20, 2) if arguments.quick else (2000, 4)
    ratios: dict[str, float] = {}
    for case in chosen:
        found = compare(case, steps, more, arguments.targets, arguments.data_root)
        ratios |= {f"{case.name}_{key}": round(value, 3) for key, value in found.items()}
    if "a" in arguments.cases.split(","):
        ratios["batch16"] = round(batched(CASES[0], 16), 3)
    if "memory" in arguments.cases.split(","):
        ratios["memory_gb"] = memory(quick=arguments.quick)
    seconds = round(time.process_time() - begun, 1)
    print(json.dumps({"benchmark": "peel", "ratios": ratios, "seconds": seconds}))


if __name__ == "__main__":
    main()
