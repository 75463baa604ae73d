"""The all-convolutional network: no shortcut, no pooling, for the non-residual form of PEEL."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from leakscope.core.errors import UsageError
from leakscope.models.architecture import MODELS, Architecture


@MODELS.register("allconv")
@dataclass(frozen=True)
class AllConv(Architecture):
    """All-CNN-C: nine convolutions with ReLU, the third and sixth with stride 2, and the mean over space.

    3×3 with `width` channels three times, twice as wide three times, then 3×3, 1×1 and 1×1 to the
    classes. Layer k is `features.{2k}`, its ReLU `features.{2k+1}`; the paper has `width=96`.

    Springenberg et al., "Striving for simplicity: the all convolutional net", ICLR workshop 2015.
    """

    width: int = 96

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("width must be positive, such as 96")

    @property
    def default_cuts(self) -> tuple[str, ...]:
        """After the second convolution, and before the first 1×1."""
        return "features.3", "features.13"

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        channels, height, width = image_shape
        if min(height, width) < 8:
            raise UsageError(f"allconv needs pictures of 8×8 or more, not {height}×{width}; resize them")
        wide = 2 * self.width
        layers: list[nn.Module] = []
        for outputs, kernel, stride in (
            (self.width, 3, 1), (self.width, 3, 1), (self.width, 3, 2), (wide, 3, 1), (wide, 3, 1), (wide, 3, 2),
            (wide, 3, 1), (wide, 1, 1), (classes, 1, 1),
        ):  # fmt: skip
            layers += [nn.Conv2d(channels, outputs, kernel, stride, kernel // 2), nn.ReLU()]
            channels = outputs
        layers.pop()  # scores are not rectified
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), head=head))
