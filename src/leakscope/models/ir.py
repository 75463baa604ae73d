"""IR networks for faces: the targets of the model-inversion literature ("FaceNet64" is IR-50 here).

A unit is BN → conv3×3 → PReLU → conv3×3 with stride → BN, plus a shortcut that is a plain subsampling
where channels agree and conv1×1 + BN where they do not; nothing follows the sum. Units: IR-50
(3, 4, 14, 3), IR-152 (3, 8, 36, 3); the first unit of each of the four stages has stride 2, so 64×64
pictures end at 4×4. Xavier-uniform weights.

Deng et al., "ArcFace", CVPR 2019; sizes as in the face.evoLve library, which Nguyen et al.,
"Re-thinking model inversion attacks", CVPR 2023, attack.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.models.architecture import MODELS, Architecture

UNITS = {18: (2, 2, 2, 2), 50: (3, 4, 14, 3), 152: (3, 8, 36, 3)}


class IRUnit(nn.Module):
    """One residual unit; batch norm stands before the first, zero-padded convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.branch = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.MaxPool2d(1, stride)
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = self.shortcut(x)
        branch: Tensor = self.branch(x)
        return branch + shortcut


class IRNet(nn.Module):
    """Stem, units, an embedding of 512 numbers, and one linear layer over it."""

    def __init__(self, channels: int, width: int, units: list[IRUnit], side: int, dim: int, classes: int) -> None:
        super().__init__()
        features = units[-1].outputs
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.PReLU(width)
        )
        self.body = nn.Sequential(*units)
        self.embed = nn.Sequential(
            nn.BatchNorm2d(features),
            nn.Dropout(),
            nn.Flatten(),
            nn.Linear(features * side * side, dim),
            nn.BatchNorm1d(dim),
        )
        self.fc = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.embed(self.body(self.stem(x))))
        return scores


@MODELS.register("ir")
@dataclass(frozen=True)
class IRArchitecture(Architecture):
    """IR-50 and IR-152; `depth=18` and a small `width` for tests. See the module."""

    depth: int = 50
    width: int = 64
    dim: int = 512

    def __post_init__(self) -> None:
        if self.depth not in UNITS:
            raise ValueError(f"depth is {self.depth}; choose one of {', '.join(map(str, UNITS))}")
        if self.width < 1 or self.dim < 1:
            raise ValueError("width and dim must be positive")

    @property
    def default_cuts(self) -> tuple[str, ...]:
        ends, last = [], -1
        for units in UNITS[self.depth]:
            last += units
            ends.append(f"body.{last}")
        return tuple(ends)

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        channels, height, width = image_shape
        if height != width or height % 16:
            raise UsageError(f"ir needs square pictures with a side divisible by 16, not {height}×{width}; resize them")
        units, inputs = [], self.width
        for stage, count in enumerate(UNITS[self.depth]):
            for unit in range(count):
                units.append(IRUnit(inputs, self.width * 2**stage, 2 if unit == 0 else 1))
                inputs = self.width * 2**stage
        model = IRNet(channels, self.width, units, height // 16, self.dim, classes)
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        return model
