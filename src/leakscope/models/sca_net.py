"""The network in which the sparse-coding architecture is tried: its twin with convolutions."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from leakscope.core.errors import UsageError
from leakscope.models.architecture import MODELS, Architecture


@MODELS.register("sca-net")
@dataclass(frozen=True)
class ScaNet(Architecture):
    """Two convolutions, each with ReLU and batch normalisation, then linear layers; no pooling.

        conv1 – relu – norm1 – conv2 – relu – norm2 – fc1 – relu1 – … – flatten – dense layers – output

    `rows` are widths of linear layers over the *width axis* (each row of each channel on its own, the
    quirk that fixes the published parameter counts), `dense` those of ordinary ones behind the flattening.
    The published end-to-end network is the default, five linear layers cut at `fc4`; the published
    split network has rows (500,) and dense (500,), three linear layers cut at `relu1`. Swap `conv1`
    and `conv2` for sparse layers (defence `sca`) and it is the paper's; untouched it is the twin of
    the same shape that its comparison lacks. `channels` [] is the undefended network of the paper: the same linear
    layers on the rows of the picture itself, without any convolution (14,000 numbers at the cut for 28×28 pictures).

    Dibbo et al., "Improving robustness to model inversion attacks via sparse coding architectures",
    ECCV 2024; facts of the published networks in spec/sca.md §2.

    Differs from the paper: ReLU follows the convolutions here, or the twin would be linear up to `norm2`.
    Non-negative codes pass it unchanged. The published split network without a defence ends in a softmax before
    the cross-entropy; this one does not.
    """

    channels: tuple[int, ...] = (16, 28)
    kernel: int = 5
    rows: tuple[int, ...] = (500, 500, 28, 500)
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.channels) not in (0, 2) or min(self.channels, default=1) < 1:
            raise ValueError("channels must be two numbers of at least 1, such as [16, 28], or none at all")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError("kernel must be odd, such as 5")
        if not self.rows or min(self.rows + self.dense) < 1:
            raise ValueError("rows must name at least one layer, and every width be at least 1, such as [500]")

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        inputs, height, width = image_shape
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, outputs in enumerate(self.channels, start=1):
            layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, self.kernel, padding=self.kernel // 2)
            layers[f"act{number}"] = nn.ReLU()
            layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
            inputs = outputs
        for number, wide in enumerate(self.rows, start=1):
            layers[f"fc{number}"] = nn.Linear(width, wide)  # over the last axis: N×C×H×width → N×C×H×wide
            if number < len(self.rows) or self.dense:
                layers[f"relu{number}"] = nn.ReLU()
            width = wide
        layers["flatten"] = nn.Flatten()
        flat = inputs * height * width
        for number, wide in enumerate(self.dense, start=len(self.rows) + 1):
            layers[f"fc{number}"] = nn.Linear(flat, wide)
            layers[f"relu{number}"] = nn.ReLU()
            flat = wide
        layers["output"] = nn.Linear(flat, classes)
        return nn.Sequential(layers)

    @property
    def default_cuts(self) -> tuple[str, ...]:
        """What the paper's split network gives away, or its end-to-end network."""
        return ("relu1",) if self.dense else (f"fc{len(self.rows)}",)


@MODELS.register("sca-conv-net")
@dataclass(frozen=True)
class ScaConvNet(Architecture):
    """The twin for colour pictures: five 5×5 convolutions, four of them pooled, then two linear layers.

        conv1 – relu – drop – norm | conv2 – relu – drop – pool – norm | … | conv5 – … | flatten – fc1 – output

    conv1 and conv2 are those that `sca-conv` swaps. The published code cuts at `norm2` (split) and at
    `norm5` (end-to-end); of the paper's "only linear layers follow" it keeps nothing for colour.

    Dibbo et al., ECCV 2024, as published in code; spec/sca.md §2.
    """

    channels: tuple[int, ...] = (16, 32, 64, 128, 256)
    kernel: int = 5
    hidden: int = 512
    dropout: float = 0.09

    def __post_init__(self) -> None:
        if len(self.channels) < 2 or min(self.channels) < 1:
            raise ValueError("channels must name at least two convolutions, such as [16, 32, 64]")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError("kernel must be odd, such as 5")
        if self.hidden < 1 or not 0 <= self.dropout < 1:
            raise ValueError("hidden must be at least 1 and dropout a share in [0, 1)")

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        inputs, height, width = image_shape
        if min(height, width) < 2 ** (len(self.channels) - 1):
            raise UsageError(
                f"sca-conv-net halves pictures {len(self.channels) - 1} times; {height}×{width} are too small: "
                "give fewer channels"
            )
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, outputs in enumerate(self.channels, start=1):
            layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, self.kernel, padding=self.kernel // 2)
            layers[f"act{number}"] = nn.ReLU()
            layers[f"drop{number}"] = nn.Dropout(self.dropout)
            if number > 1:
                layers[f"pool{number}"] = nn.MaxPool2d(2)
                height, width = height // 2, width // 2
            layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
            inputs = outputs
        layers["flatten"] = nn.Flatten()
        layers["fc1"] = nn.Linear(inputs * height * width, self.hidden)
        layers["relu1"] = nn.ReLU()
        layers["output"] = nn.Linear(self.hidden, classes)
        return nn.Sequential(layers)

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return "norm2", f"norm{len(self.channels)}"
