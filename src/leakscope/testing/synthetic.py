"""A tiny world: smooth random pictures, and a small convolutional network cut in two."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, ThreatModel, View, grant

CLASSES = 3
SHAPE = (1, 16, 16)
CPU = torch.device("cpu")


def smooth_images(count: int, name: str, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    """Random pictures with neighbouring pixels alike, as real ones are."""
    channels, height, width = shape
    rng = seeds.generator(0, "smooth-images", name)
    coarse = torch.rand(count, channels, max(2, height // 4), max(2, width // 4), generator=rng)
    return nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False).clamp(0, 1)


def image_set(count: int, name: str, shape: tuple[int, int, int] = SHAPE) -> ImageSet:
    labels = torch.arange(count) % CLASSES
    return ImageSet(smooth_images(count, name, shape), labels, tuple(f"class-{i}" for i in range(CLASSES)))


class SmallNet(nn.Module):
    """Two convolutions and a linear head; cut it at `features`."""

    def __init__(self, shape: tuple[int, int, int] = SHAPE) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], 8, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        )
        self.rest = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.rest(self.features(x))
        return scores


def small_split(defense: Defense | None = None, device: torch.device = CPU) -> SplitModel:
    """The same network every time, in eval mode."""
    with seeds.ambient(0, "small-split"):
        model = SmallNet()
    return SplitModel(model, "features", defense=defense).eval().to(device)


def small_view(
    access: frozenset[Access],
    *,
    defense: Defense | None = None,
    queries: int | None = None,
    public: int = 160,
    split: SplitModel | None = None,
    device: torch.device = CPU,
) -> View:
    """What an attacker with `access` and its own pictures is handed; of `split` in place of the small network.

    The network works on `device`; the pictures stay where data sets are, on the CPU.
    """
    threat = ThreatModel(access, queries=queries)
    rng = seeds.generator(0, "oracle", device=device)
    target = split.to(device) if split is not None else small_split(defense, device)
    return grant(target, threat, image_set(public, "public"), rng, classes=CLASSES, device=device)
