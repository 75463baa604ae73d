"""The small network of the demonstration."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from leakscope.models.architecture import MODELS, Architecture

#: Convolution, normalisation, ReLU, pooling.
_LAYERS_A_BLOCK = 4


@MODELS.register("convnet")
@dataclass(frozen=True)
class ConvNet(Architecture):
    """Blocks of 3×3 convolution, batch normalisation, ReLU and 2×2 max-pooling, then a linear head.

    Block k is `features.{4k}` to `features.{4k+3}`. A side of one pixel is not pooled further, so any
    picture size will do. The head reads the last map whole: averaging it over space would need
    more channels for the same accuracy.
    """

    widths: tuple[int, ...] = (16, 32, 64)

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise ValueError("widths must name at least one block of at least one channel, such as [16, 32, 64]")

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for wide in self.widths:
            window = (2 if height > 1 else 1, 2 if width > 1 else 1)
            layers += [
                nn.Conv2d(channels, wide, 3, padding=1, bias=False),  # the normalisation's shift is its bias
                nn.BatchNorm2d(wide),
                nn.ReLU(),
                nn.MaxPool2d(window),
            ]
            channels, height, width = wide, height // window[0], width // window[1]
        head = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))
        return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), head=head))

    @property
    def default_cuts(self) -> tuple[str, ...]:
        """Before the first pooling, and after the second block."""
        later = min(2, len(self.widths)) * _LAYERS_A_BLOCK - 1
        return "features.2", f"features.{later}"
