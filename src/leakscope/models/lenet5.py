"""LeNet-5."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from leakscope.core.errors import UsageError
from leakscope.models.architecture import MODELS, Architecture


def _after(side: int, padding: int) -> int:
    """The side of a picture after both blocks: a 5×5 convolution and a halving, twice."""
    return ((side + 2 * padding - 4) // 2 - 4) // 2


@MODELS.register("lenet5")
@dataclass(frozen=True)
class LeNet5(Architecture):
    """Two blocks of 5×5 convolution, activation and pooling (6 and 16 channels), then 120 → 84 → classes.

    LeCun et al., "Gradient-based learning applied to document recognition", 1998.

    Differs from the paper: ReLU for tanh, max for average pooling, full connections in the second
    block, a linear output. Pictures below 32 pixels are padded by 2, so that 28 and 32 give one
    network; larger ones widen the first linear layer.
    """

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        channels, height, width = image_shape
        padding = 2 if min(height, width) < 32 else 0
        rows, columns = _after(height, padding), _after(width, padding)
        if min(rows, columns) < 1:
            raise UsageError(f"lenet5 needs pictures of 12×12 or more, not {height}×{width}; take convnet or mlp")
        block1 = nn.Sequential(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2))
        block2 = nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(
            OrderedDict(
                block1=block1,
                block2=block2,
                flatten=nn.Flatten(),
                fc1=nn.Linear(16 * rows * columns, 120),
                relu1=nn.ReLU(),
                fc2=nn.Linear(120, 84),
                relu2=nn.ReLU(),
                output=nn.Linear(84, classes),
            )
        )

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return "block1", "block2"
