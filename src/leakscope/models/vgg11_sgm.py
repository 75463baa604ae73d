"""VGG11 with a Sigmoid-terminated bottleneck at the client's end."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from leakscope.models.architecture import MODELS, Architecture

#: Channels of a 3×3 convolution with normalisation and ReLU; None is a 2×2 max-pool.
_ENTRIES = (64, None, 128, None, 256, 256, None, 512, 512, None, 512, 512, None)


@MODELS.register("vgg11-sgm")
@dataclass(frozen=True)
class VGG11SGM(Architecture):
    """VGG11-BN cut after `cut_layer` entries (pools counted), where a bottleneck narrows what is sent.

    The client is `client`: convolution blocks, a reducing convolution to `channels`, Sigmoid. The
    server widens back (`server.widen`) and goes on; `head` is 512 → 512 → classes with dropout. The
    published option `noRELU_C8S1` is the default; `[noRELU_][Kk]CcSs` reads relu, kernel, channels,
    stride.

    Xia et al., "CEM: Conditional entropy maximization for collaborative inference", 2025 (VGG11-BN-SGM).

    Differs from the paper's code: below 32 pixels pools round up, and above 63 the last map is
    averaged, so that every size fits; at 32 the two networks are the same.
    """

    width: float = 1.0  # of every layer but the bottleneck
    cut_layer: int = 4
    channels: int = 8
    stride: int = 1
    kernel: int = 3
    relu: bool = False
    sigmoid: bool = True  # False: the client ends in batch normalisation (the published `vgg11_bn`)

    def __post_init__(self) -> None:
        if not 0 < self.width <= 4:
            raise ValueError("width multiplies the channels: above 0 and at most 4, such as 0.25")
        if not 1 <= self.cut_layer < len(_ENTRIES):
            raise ValueError(f"cut_layer counts convolutions and pools: 1 to {len(_ENTRIES) - 1}")
        if self.channels < 1:
            raise ValueError("channels must be at least 1")
        if self.stride < 1 or self.stride & (self.stride - 1):
            raise ValueError("stride must be a power of two: 1, 2, 4, …")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError("kernel must be odd, such as 3")

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        round_up = min(image_shape[1:]) < 32
        before, wide = self._blocks(_ENTRIES[: self.cut_layer], image_shape[0], round_up)
        after, last = self._blocks(_ENTRIES[self.cut_layer :], wide, round_up)
        end = nn.Sigmoid() if self.sigmoid else nn.BatchNorm2d(self.channels)
        client = nn.Sequential(OrderedDict(body=before, narrow=self._narrow(wide), end=end))
        for layer in client.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        server = nn.Sequential(
            OrderedDict(widen=self._widen(wide), body=after, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        )
        hidden = self._scaled(512)
        head = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(last, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
        network = nn.Sequential(OrderedDict(client=client, server=server, head=head))
        # The same numbers in another order in memory: a training step on a CPU takes a quarter less.
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    @property
    def default_cuts(self) -> tuple[str, ...]:
        """The bottleneck is the cut: anything else would go round the defence that it is."""
        return ("client",)

    def _scaled(self, channels: int) -> int:
        return max(1, round(channels * self.width))

    def _blocks(self, entries: tuple[int | None, ...], channels: int, round_up: bool) -> tuple[nn.Sequential, int]:
        layers: list[nn.Module] = []
        for entry in entries:
            if entry is None:
                layers.append(nn.MaxPool2d(2, ceil_mode=round_up))
                continue
            wide = self._scaled(entry)
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
            channels = wide
        return nn.Sequential(*layers), channels

    def _halvings(self) -> int:
        return self.stride.bit_length() - 1

    def _narrow(self, wide: int) -> nn.Sequential:
        """A stride of 2ⁿ is n convolutions of stride 2, the first of which reduces the channels."""
        layers: list[nn.Module] = []
        for number in range(max(1, self._halvings())):
            inputs = wide if number == 0 else self.channels
            layers.append(nn.Conv2d(inputs, self.channels, self.kernel, min(self.stride, 2), self.kernel // 2))
            layers += [nn.ReLU()] if self.relu else []
        return nn.Sequential(*layers)

    def _widen(self, wide: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        if self.stride == 1:
            layers.append(nn.Conv2d(self.channels, wide, self.kernel, padding=self.kernel // 2))
        for number in range(self._halvings()):
            outputs = wide if number == self._halvings() - 1 else self.channels
            layers.append(nn.ConvTranspose2d(self.channels, outputs, self.kernel, 2, self.kernel // 2, 1))
        return nn.Sequential(*[item for layer in layers for item in ([layer, nn.ReLU()] if self.relu else [layer])])
