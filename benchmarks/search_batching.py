"""Searching for 32 pictures at once against one by one: same attack, same settings, one run, one thread."""

from __future__ import annotations

import json
import time

import torch
from torch import nn

from leakscope.attacks.search import Search
from leakscope.core.attack import Observed, Prepared
from leakscope.core.model import SplitModel
from leakscope.core.seeds import ambient, generator
from leakscope.core.threat import ThreatModel, grant
from leakscope.data.embedded import Mnist5k


def main(count: int = 32, alone: int = 8, steps: int = 60) -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    data = Mnist5k().load(None)
    victims, public = data.images[:count], data.take(torch.arange(1000, 1500))
    with ambient(0, "benchmark"):
        layers = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        model = nn.Sequential(layers, nn.Flatten(), nn.Linear(16 * 28 * 28, 10))
    target = SplitModel(model, "0").eval()
    attack = Search(steps=steps)
    view = grant(target, ThreatModel(), public, generator(0, "o"), classes=10, device=torch.device("cpu"))
    features = target.release(victims).detach()

    def run(part: torch.Tensor) -> tuple[float, torch.Tensor]:
        started = time.process_time()
        guess = attack.reconstruct(view, Prepared(), Observed(features=part), generator(0, "r"))
        return time.process_time() - started, guess.images

    run(features[:2])  # warm up
    together, pictures = run(features)
    single = [run(features[row : row + 1]) for row in range(alone)]
    one_by_one = sum(seconds for seconds, _ in single) * count / alone
    worst = max((pictures[row] - image[0]).abs().max().item() for row, (_, image) in enumerate(single))
    print(f"{count} together {together:.2f} s of CPU; one by one {one_by_one:.2f} s (scaled from {alone})")
    print(f"largest difference of a pixel {worst:.1e}")
    ratios = {"one by one over together": one_by_one / together}
    print(json.dumps({"benchmark": "search_batching", "ratios": ratios, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
