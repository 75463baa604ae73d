"""What a decoder is trained to minimise; low is good, and a perfect picture scores zero."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.nn import alexnet
from leakscope.nn.perceptual import perceptual_distance
from leakscope.nn.random_features import RandomFeatures
from leakscope.nn.ssim import ssim

Loss = Callable[[Tensor, Tensor], Tensor]


def one_minus_ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """1 − SSIM, over all pictures."""
    return 1 - ssim(guess, truth).mean().to(guess.dtype)


class Perceptual(nn.Module):
    """Mean squared error plus the LPIPS distance in AlexNet's convolutions.

    Zhang et al., "The unreasonable effectiveness of deep features as a perceptual metric", 2018.
    """

    def __init__(self, path: str, device: torch.device) -> None:
        super().__init__()
        self.network = alexnet.load(Path(path), device)

    def distance(self, guess: Tensor, truth: Tensor) -> Tensor:
        """LPIPS, one value per image."""
        return perceptual_distance(self.network, guess, truth)

    def forward(self, guess: Tensor, truth: Tensor) -> Tensor:
        return nn.functional.mse_loss(guess, truth) + self.distance(guess, truth).mean()


class RandomConvolutions(nn.Module):
    """Mean squared error plus 1 − cosine of features in random convolutions, averaged over places and three layers.

    Random filters keep edges and textures apart without having been trained on anybody's pictures, so that
    the loss needs no file. He, Wang & Hopcroft, "A powerful generative model using random weights for the deep
    image representation", 2016. The filters are not those of any metric: an attack must not own its evaluator.
    """

    WIDTHS = (3, 16, 32, 64)

    def __init__(self) -> None:
        super().__init__()
        rng = seeds.generator(0, "attacks", "random-conv")
        drawn = [
            (torch.randn(after, before, 3, 3, generator=rng) * (2 / (9 * before)) ** 0.5,
             0.5 * torch.randn(after, generator=rng))
            for before, after in pairwise(self.WIDTHS)
        ]  # fmt: skip
        self.features = RandomFeatures(*zip(*drawn, strict=True))

    def forward(self, guess: Tensor, truth: Tensor) -> Tensor:
        distances = [
            1 - nn.functional.cosine_similarity(a, b, dim=1, eps=1e-6).mean()
            for a, b in zip(self.features(guess), self.features(truth), strict=True)
        ]
        return nn.functional.mse_loss(guess, truth) + torch.stack(distances).mean()


def _perceptual(weights: str | None, device: torch.device) -> Loss:
    if weights is None:
        raise UsageError("loss=perceptual needs weights=PATH to lpips-alexnet-v0.1.safetensors")
    return Perceptual(weights, device)


#: Each takes the path of a weights file, which only one of them reads, and the device.
LOSSES: dict[str, Callable[[str | None, torch.device], Loss]] = {
    "mse": lambda weights, device: nn.functional.mse_loss,
    "l1": lambda weights, device: nn.functional.l1_loss,
    "ssim": lambda weights, device: one_minus_ssim,
    "perceptual": _perceptual,
    "random-conv": lambda weights, device: RandomConvolutions().to(device),
}
