"""The convolutions of AlexNet, with the channel weights that LPIPS learnt on top of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import UsageError
from leakscope.nn.weights import read_safetensors

FILE = "lpips-alexnet-v0.1.safetensors"
#: Smaller pictures are enlarged to this side: below 31 pixels AlexNet's second pooling has nothing left
#: to pool, and LPIPS was fitted to patches of 64.
SMALLEST_SIDE = 64

# Of images in [−1, 1], as in the reference implementation: ImageNet's statistics to three digits.
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)


def to_rgb(images: Tensor) -> Tensor:
    """Grey pictures repeated to three channels."""
    channels = images.shape[1]
    if channels not in (1, 3):
        raise UsageError(f"perceptual networks see grey or RGB pictures, not {channels} channels; leave the metric out")
    return images.expand(-1, 3, -1, -1)


def enlarge(images: Tensor, smallest: int) -> Tensor:
    """Bilinear, both sides by one factor, until the shorter is `smallest`; larger pictures are left alone."""
    side = min(images.shape[-2:])
    if side >= smallest:
        return images
    size = [round(length * smallest / side) for length in images.shape[-2:]]
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


class LpipsAlexNet(nn.Module):
    """Pictures in [0, 1] to the five rectified maps of AlexNet (Krizhevsky, 2014) that LPIPS compares.

    `channel_weights[l]`, not negative, says how much each channel of map l counts.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.features = nn.Sequential(  # indices as in torchvision, hence in the file
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
        )
        self.channel_weights = nn.ParameterList(torch.empty(n) for n in (64, 192, 384, 256, 256))
        self.register_buffer("shift", torch.tensor(_SHIFT).view(3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(_SCALE).view(3, 1, 1), persistent=False)
        self.load_state_dict({name.replace("lin", "channel_weights."): value for name, value in tensors.items()})
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> list[Tensor]:
        x = (2 * enlarge(to_rgb(images), SMALLEST_SIDE) - 1 - self.shift) / self.scale
        maps = []
        for layer in self.features:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                maps.append(x)
        return maps


@lru_cache(maxsize=2)
def load(path: Path, device: torch.device) -> LpipsAlexNet:
    """The network of a file, kept for the next metric that asks."""
    tensors = read_safetensors(path)
    try:
        # Every weight is overwritten: no need to draw initial ones from the ambient generator.
        with torch.random.fork_rng(devices=[]):
            return LpipsAlexNet(tensors).to(device)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} does not hold LPIPS v0.1 on AlexNet ({reason}); copy the file again") from None
