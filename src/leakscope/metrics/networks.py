"""Networks whose features metrics compare, by name; each metric's name says which one it used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.seeds import generator
from leakscope.nn import alexnet
from leakscope.nn.perceptual import Perception
from leakscope.nn.random_features import RandomFeatures
from leakscope.nn.weights import missing, weights_path

INCEPTION_FILE = "inception_v3_google-0cc3c7bd.pth"

#: Pictures in, one row of features each out.
Embedding = Callable[[Tensor], Tensor]
Made = TypeVar("Made", covariant=True)


@dataclass(frozen=True)
class Source(Generic[Made]):
    """Where a network comes from: the file it needs, if any, and how it is made from it."""

    file: str | None
    make: Callable[[Path | None, torch.device], Made]

    def unavailable(self, root: Path | None) -> str | None:
        return None if self.file is None else missing(root, self.file)

    def load(self, root: Path | None, device: torch.device) -> Made:
        return self.make(None if self.file is None else weights_path(root, self.file), device)


class RandomConv(RandomFeatures):
    """He-initialised 3×3 convolutions of 32, 64 and 128 channels.

    All channels count alike, and half the squared distance of unit vectors without negative entries
    is 1 − cos ∈ [0, 1]; divided by the number of maps, so is the loss.
    """

    def __init__(self) -> None:
        rng = generator(0, "metrics", "random-conv")
        widths = (3, 32, 64, 128)
        kernels = [
            torch.randn(after, before, 3, 3, generator=rng) * (2 / (9 * before)) ** 0.5
            for before, after in pairwise(widths)
        ]
        super().__init__(kernels, [0.5 * torch.randn(n, generator=rng) for n in widths[1:]])
        weights = (torch.full((n,), 1 / (2 * len(kernels))) for n in widths[1:])
        self.channel_weights = nn.ParameterList(weights).requires_grad_(False)


@lru_cache(maxsize=2)
def load_random_conv(device: torch.device) -> RandomConv:
    return RandomConv().to(device)


@lru_cache(maxsize=1)
def load_inception(path: Path, device: torch.device) -> nn.Module:
    """torchvision's Inception v3 up to its 2,048 averaged features."""
    ensure_torchvision()
    from torchvision.models import inception_v3

    with torch.random.fork_rng(devices=[]):
        network: nn.Module = inception_v3(weights=None, transform_input=False, init_weights=False)
    try:
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (RuntimeError, UnpicklingError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} does not hold torchvision's Inception v3 ({reason}); copy the file again") from None
    network.fc = nn.Identity()
    return network.eval().requires_grad_(False).to(device)


def _alexnet(path: Path | None, device: torch.device) -> alexnet.LpipsAlexNet:
    assert path is not None
    return alexnet.load(path, device)


def _random_conv(path: Path | None, device: torch.device) -> RandomConv:
    return load_random_conv(device)


def _inception_embedding(path: Path | None, device: torch.device) -> Embedding:
    assert path is not None
    network = load_inception(path, device)

    def embed(images: Tensor) -> Tensor:
        x = F.interpolate(alexnet.to_rgb(images), size=(299, 299), mode="bilinear", antialias=True)
        features: Tensor = network(2 * x - 1)  # what torchvision's weights were trained on
        return features

    return embed


def _alexnet_embedding(path: Path | None, device: torch.device) -> Embedding:
    network = _alexnet(path, device)
    return lambda images: network(images)[-1].mean((2, 3))


def _random_conv_embedding(path: Path | None, device: torch.device) -> Embedding:
    network = load_random_conv(device)
    return lambda images: torch.cat([each.mean((2, 3)) for each in network(images)], 1)


def _pixel_embedding(path: Path | None, device: torch.device) -> Embedding:
    """Averages over a grid of at most 16×16: 768 numbers an RGB picture, few enough for a covariance."""

    def embed(images: Tensor) -> Tensor:
        height, width = (min(side, 16) for side in images.shape[-2:])
        return F.adaptive_avg_pool2d(images, (height, width)).flatten(1)

    return embed


#: Several maps for each picture, to be compared position by position.
PERCEPTIONS: dict[str, Source[Perception]] = {
    "alexnet": Source(alexnet.FILE, _alexnet),
    "random-conv": Source(None, _random_conv),
}

#: One vector for each picture.
EMBEDDINGS: dict[str, Source[Embedding]] = {
    "inception": Source(INCEPTION_FILE, _inception_embedding),
    "alexnet": Source(alexnet.FILE, _alexnet_embedding),
    "random-conv": Source(None, _random_conv_embedding),
    "pixels": Source(None, _pixel_embedding),
}
