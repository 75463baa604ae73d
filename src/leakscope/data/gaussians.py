"""Two Gaussian clouds: the synthetic set of MixCon, whose Bayes error is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.seeds import generator
from leakscope.data.images import checked


@DATASETS.register("gaussians")
@dataclass(frozen=True)
class Gaussians:
    """Positives `N(0, I)`, negatives `N(−1, I)` in ten dimensions, half each, a share of the labels flipped.

    Without flips the Bayes rule errs with probability `Φ(−√D/2)`. Points are N×D×1×1 and not pixels.

    Li et al., "MixCon: Adjusting the separability of data representations for harder data recovery"
    (2020), section 4.2 and appendix C.1: 800 points to train on, 200 to test on. An attacker with data
    of its own needs more: `count=1800` leaves 800 for `public`.
    """

    count: int = 1000
    dimensions: int = 10
    flipped: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 2 or self.dimensions < 1:
            raise ValueError("count must be at least 2 and dimensions at least 1")
        if not 0 <= self.flipped <= 0.5:
            raise ValueError(f"flipped is a share of the labels between 0 and 0.5, not {self.flipped}")

    def load(self, root: Path | None) -> ImageSet:
        rng = generator(self.seed, "gaussians")
        truth = (torch.arange(self.count) % 2)[torch.randperm(self.count, generator=rng)]
        noise = torch.randn(self.count, self.dimensions, 1, 1, generator=rng)
        points = noise - (1 - truth).view(-1, 1, 1, 1)
        wrong = torch.randperm(self.count, generator=rng)[: round(self.flipped * self.count)]
        labels = truth.clone()
        labels[wrong] = 1 - labels[wrong]
        return checked(ImageSet(points, labels, ("negative", "positive"), pixels=False), "gaussians")
