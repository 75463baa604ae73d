"""Rebuilding 60 identities at once against one by one: same attack, same steps, one run, one thread.

Steps·identities per second of processor time, for the nets of the small face protocol: a convolutional GAN of
width 16 at 32×32 pixels, and a target of three convolutions.
"""

from __future__ import annotations

import json
import time

import torch
from torch import nn

from leakscope.core.attack import ATTACKS, Observed
from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.seeds import ambient, generator
from leakscope.core.threat import ThreatModel, grant

SHAPE = (1, 32, 32)
GAN = {"kind": "dcgan", "width": 16, "latent": 64, "steps": 0, "opening": 0}
SPECS: dict[str, dict[str, object]] = {
    "gmi": {"kind": "gmi", "prior": GAN, "images": 1},
    "kedmi": {"kind": "kedmi", "prior": {"kind": "kedmi-gan", "base": GAN, "steps": 0}, "images": 1},
    "lomma-gmi": {"kind": "lomma-gmi", "prior": GAN, "images": 1, "students": [8], "epochs": 0},
}


def target(classes: int) -> SplitModel:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    with ambient(0, "target"):
        body = nn.Sequential(*block(1, 16), *block(16, 32), *block(32, 64), nn.Flatten())
        return SplitModel(nn.Sequential(body, nn.Linear(64 * 16, classes)), "0").eval()


def measure(name: str, spec: dict[str, object], count: int, alone: int, steps: int) -> float:
    """How many times faster `count` identities are at once; singles are scaled up from `alone` of them."""
    images = torch.rand(64, *SHAPE, generator=generator(0, "public"))
    public = ImageSet(images, torch.zeros(64, dtype=torch.int64), ("a",))
    attack = ATTACKS.build({**spec, "steps": steps})
    view = grant(target(count), ThreatModel(), public, generator(0, "o"), classes=count, device=torch.device("cpu"))
    prepared = attack.prepare(view, generator(0, "p"))

    def run(classes: torch.Tensor) -> tuple[float, torch.Tensor]:
        started = time.process_time()
        guess = attack.reconstruct(view, prepared, Observed(classes=classes), generator(0, "r"))
        return time.process_time() - started, guess.images

    run(torch.arange(2))  # warm up
    together, pictures = run(torch.arange(count))
    single = [run(torch.tensor([label])) for label in range(alone)]
    one_by_one = sum(seconds for seconds, _ in single) / alone
    worst = max((pictures[label] - image[0]).abs().max().item() for label, (_, image) in enumerate(single))
    rates = steps * count / together, steps / one_by_one
    print(
        f"{name}: {rates[0]:.0f} steps·identities/s with {count} at once, {rates[1]:.0f} one by one: "
        f"{rates[0] / rates[1]:.1f}×; largest difference of a pixel {worst:.1e}"
    )
    return rates[0] / rates[1]


def main(count: int = 60, alone: int = 5, steps: int = 40) -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    ratios = {name: measure(name, spec, count, alone, steps) for name, spec in SPECS.items()}
    print(json.dumps({"benchmark": "class_attacks", "ratios": ratios, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
