"""The pre-activation residual networks that PEEL inverts.

    y = W_s x + W_2 act(W_1 x),

with nothing rectified after the sum; W_s is the identity, or a 1×1 convolution where shapes change.
The depths keep this two-convolution block everywhere, as the paper does: 18 [2,2,2,2], 34 [3,4,6,3],
"50" [6,8,12,6], "152" [3,8,36,3].

HybReNets (Jha and Reagen, "DeepReShape", TMLR 2024) differ in how width grows from stage to stage:
`growth=(5, 5, 3)` is HRN-5x5x3x, `growth=(2, 5, 3)` is HRN-2x5x3x, both with `width=16`.

Differs from the paper: stride is an option, because a strided block halves the dimension and has no
inverse (`strided=False` is the only reading that agrees with the published errors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from leakscope.core.model import Normalize
from leakscope.models.architecture import MODELS, Architecture

UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (6, 8, 12, 6), 152: (3, 8, 36, 3)}

INITS: dict[str, Callable[[Tensor], object]] = {
    "default": lambda weight: None,  # PyTorch's own: uniform with variance 1/(3·fan_in), contractive branches
    "xavier": nn.init.xavier_uniform_,
    "kaiming": lambda weight: nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu"),
}

ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {"relu": lambda channels: nn.ReLU(), "prelu": nn.PReLU}


def _activation(name: str, channels: int) -> nn.Module:
    return ACTIVATIONS[name](channels)


def _norm(batch_norm: bool, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()


class PlainBlock(nn.Module):
    """`y = W_2 act(W_1 x)`: `PreactBlock` with its shortcut taken out, and nothing else changed."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: str, batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = _norm(batch_norm, outputs)
        self.act = _activation(activation, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = _norm(batch_norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        return y


class PreactBlock(PlainBlock):
    """`y = W_s x + W_2 act(W_1 x)`; batch norm, if any, follows each convolution and folds into it."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: str, batch_norm: bool) -> None:
        super().__init__(inputs, outputs, stride, activation, batch_norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(batch_norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = self.shortcut(x)
        return shortcut + super().forward(x)


class PreactResNet(nn.Module):
    """Shallow layers, four stages of blocks, average pooling and one linear layer."""

    def __init__(self, stem: nn.Sequential, stages: list[nn.Sequential], features: int, classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))
        scores: Tensor = self.fc(torch.flatten(self.pool(x), 1))
        return scores


#: Kernel and stride of the first convolution.
STEMS = {"conv3": (3, 1), "conv7": (7, 2)}


@MODELS.register("preact-resnet", revision=2)
@dataclass(frozen=True)
class PreactResNetArchitecture(Architecture):
    """PEEL's networks; see the module. `stem_activation` puts an activation after the first convolution.

    The paper's configurations: U is the default with untrained weights, P the trained one, and M in front
    of either is `pooling=true`. `skip=false` takes every shortcut out.
    """

    depth: int = 18
    width: int = 64
    growth: tuple[int, int, int] = (2, 2, 2)
    strided: bool = True
    pooling: bool = False
    skip: bool = True
    stem: Literal["conv3", "conv7"] = "conv3"
    stem_activation: bool = False
    activation: Literal["relu", "prelu"] = "relu"
    batch_norm: bool = False
    init: Literal["default", "xavier", "kaiming"] = "default"

    def __post_init__(self) -> None:
        if self.depth not in UNITS:
            raise ValueError(f"depth is {self.depth}; choose one of {', '.join(map(str, UNITS))}")
        if self.width < 1 or min(self.growth) < 1:
            raise ValueError("width and growth must be positive")

    @property
    def channels(self) -> tuple[int, ...]:
        sizes = [self.width]
        for factor in self.growth:
            sizes.append(sizes[-1] * factor)
        return tuple(sizes)

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return tuple(f"layer{stage}.{units - 1}" for stage, units in enumerate(UNITS[self.depth], 1))

    def normalization(self) -> nn.Module:
        """Values of order one around zero: PEEL starts at zero and moves by at most steps × learning rate."""
        return Normalize((0.5,), (0.25,))

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        kernel, stride = STEMS[self.stem]
        stem = nn.Sequential()
        stem.add_module("conv", nn.Conv2d(image_shape[0], self.width, kernel, stride, kernel // 2, bias=False))
        if self.batch_norm:
            stem.add_module("norm", nn.BatchNorm2d(self.width))
        if self.stem_activation:
            stem.add_module("act", _activation(self.activation, self.width))
        if self.pooling:
            stem.add_module("pool", nn.MaxPool2d(3, 2, 1))
        block = PreactBlock if self.skip else PlainBlock
        stages, inputs = [], self.width
        for stage, (units, outputs) in enumerate(zip(UNITS[self.depth], self.channels, strict=True)):
            blocks = []
            for unit in range(units):
                stride = 2 if self.strided and stage > 0 and unit == 0 else 1
                blocks.append(block(inputs, outputs, stride, self.activation, self.batch_norm))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        model = PreactResNet(stem, stages, inputs, classes)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                INITS[self.init](module.weight)
        return model
