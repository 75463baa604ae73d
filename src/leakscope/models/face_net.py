"""A small network for faces, in five blocks that can be frozen one by one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from leakscope.core.model import Normalize
from leakscope.models.architecture import MODELS, Architecture


@MODELS.register("face-net")
@dataclass(frozen=True)
class FaceNet(Architecture):
    """Five blocks of convolution, batch normalisation, ReLU and pooling; normalised features; one linear layer.

    0.28 million parameters at the default width, 64×64 grey pictures and 62 identities. Layers are
    `block1` to `block5`, `features` (what is compared with class centres) and `fc`.
    """

    widths: tuple[int, int, int, int, int] = (16, 32, 64, 128, 128)

    def __post_init__(self) -> None:
        if min(self.widths) < 1:
            raise ValueError("widths must be positive, such as [16, 32, 64, 128, 128]")

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return ("features",)

    def normalization(self) -> nn.Module:
        return Normalize((0.5,), (0.25,))

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        inputs, height, width = image_shape
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for number, outputs in enumerate(self.widths, 1):
            parts[f"block{number}"] = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
            )
            inputs, height, width = outputs, -(-height // 2), -(-width // 2)
        parts["flatten"] = nn.Flatten()
        parts["features"] = nn.BatchNorm1d(inputs * height * width)
        parts["fc"] = nn.Linear(inputs * height * width, classes)
        return nn.Sequential(parts)
