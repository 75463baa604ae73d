"""Distance as a network sees it: LPIPS, and MixCon's PSIM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.metrics.networks import PERCEPTIONS
from leakscope.metrics.pictures import require_pictures
from leakscope.nn.perceptual import Perception, perceptual_distance

#: Pixels a network sees at once (128 pictures of 64×64); its maps take some fifty times as much.
PIXELS_AT_ONCE = 128 * 64 * 64


@torch.no_grad()
def perceptual_loss(network: Perception, guess: Tensor, truth: Tensor) -> Tensor:
    """`perceptual_distance` of each image, a few images at once."""
    at_once = max(1, PIXELS_AT_ONCE // truth[0, 0].numel())
    parts = zip(guess.split(at_once), truth.split(at_once), strict=True)
    return torch.cat([perceptual_distance(network, a, b) for a, b in parts])


@METRICS.register("lpips")
@dataclass(frozen=True)
class LearnedPerceptualDistance(Metric):
    """LPIPS v0.1 on AlexNet (Zhang et al., CVPR 2018): `perceptual_distance` with the learnt channel weights.

    Pictures are taken from [0, 1] to [−1, 1] and normalised here; grey ones are repeated to RGB.
    A picture whose shorter side is below 64 pixels is first enlarged to 64 (bilinear, no corner
    alignment): AlexNet sees nothing below 31. Such values can be compared with each other, not with
    LPIPS computed after another enlargement.
    """

    more_leak: ClassVar[Literal["high", "low"]] = "low"
    limits: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def unavailable(self, root: Path | None) -> str | None:
        return PERCEPTIONS["alexnet"].unavailable(root)

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        return perceptual_loss(PERCEPTIONS["alexnet"].load(reference.root, truth.device), guess, truth)


@METRICS.register("psim")
@dataclass(frozen=True)
class PerceptualSimilarity(Metric):
    """1 − `perceptual_distance` in the features of a named network (MixCon, Li et al., 2020).

    `alexnet` carries the LPIPS weights, so psim[alexnet] = 1 − LPIPS, and may fall a little below 0.
    `random-conv` needs no file; its channels count alike, and its similarity lies in [0, 1].
    Values in the features of two networks cannot be compared; hence the network is in the name.

    Differs from the paper: MixCon does not say which network it used.
    """

    network: str = "alexnet"

    more_leak: ClassVar[Literal["high", "low"]] = "high"

    def __post_init__(self) -> None:
        if self.network not in PERCEPTIONS:
            raise ValueError(f"no network {self.network!r} for psim; choose from: {', '.join(PERCEPTIONS)}")

    @property
    def name(self) -> str:
        return f"psim[{self.network}]"

    def unavailable(self, root: Path | None) -> str | None:
        return PERCEPTIONS[self.network].unavailable(root)

    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        require_pictures(guess, truth)
        return 1 - perceptual_loss(PERCEPTIONS[self.network].load(reference.root, truth.device), guess, truth)
