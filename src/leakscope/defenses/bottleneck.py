"""A narrow passage at the cut."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel


class Narrowed(nn.Module):
    """A layer, with a reducing layer behind it and an expanding one behind that."""

    def __init__(self, body: nn.Module, narrow: nn.Module, widen: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.narrow = narrow
        self.widen = widen

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        wide: Tensor = self.widen(self.narrow(self.body(*args, **kwargs)))
        return wide


@DEFENSES.register("bottleneck")
@dataclass(frozen=True)
class Bottleneck(Defense):
    """Sends few channels: a convolution to `channels` at the client, one back at the server.

        z̃ = narrow(z) ∈ R^(channels × H/stride × W/stride),  the server goes on from widen(z̃)

    The cut moves to `CUT.narrow`. Flat features and tokens are reduced by a linear layer, to
    `channels` numbers (each). New weights come from torch's ambient generator.

    Li et al., "ResSFL", 2022; the option `[noRELU_][Kk]CcSs` of Xia et al., "CEM", 2025, is
    relu, kernel, channels, stride, and its usual `noRELU_C8S1` the default.

    Differs from the paper: a stride above 2 is one convolution, not a chain of strides of 2.
    """

    #: A decoder trained on the defended features, with fresh draws, is the attack made against it.
    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    channels: int = 8
    stride: int = 1
    kernel: int = 3
    relu: bool = False

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ValueError("channels must be at least 1, such as 8")
        if self.stride < 1:
            raise ValueError("stride must be at least 1")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError("kernel must be odd, such as 3")
        if self.kernel < self.stride:
            raise ValueError("kernel must be at least the stride, or pixels between the windows are never read")

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        was_training = split.training
        with torch.no_grad():
            z = split.eval().encode(example)
        split.train(was_training)
        narrow, widen = self._layers(z, split.cut)
        with torch.no_grad():
            sent = prod(narrow.to(z)(z).shape[1:])
        if sent >= prod(z.shape[1:]):
            raise UsageError(
                f"bottleneck sends {sent} numbers where {split.cut!r} has {prod(z.shape[1:])}; fewer channels narrow it"
            )
        model = copy.deepcopy(split.model)
        parent, _, own = split.cut.rpartition(".")
        body = model.get_submodule(split.cut)
        setattr(model.get_submodule(parent), own, Narrowed(body, self._ended(narrow), self._ended(widen.to(z))))
        rebuilt = SplitModel(model, f"{split.cut}.narrow", normalize=split.normalize, defense=split.defense)
        return rebuilt.train(was_training)

    def _ended(self, layer: nn.Module) -> nn.Module:
        return nn.Sequential(layer, nn.ReLU()) if self.relu else layer

    def _layers(self, z: Tensor, cut: str) -> tuple[nn.Module, nn.Module]:
        if z.ndim == 4:
            return self._convolutions(z)
        if self.stride > 1:
            raise UsageError(f"bottleneck: {cut!r} has no height and width to stride over; leave stride at 1")
        return nn.Linear(z.shape[-1], self.channels), nn.Linear(self.channels, z.shape[-1])

    def _convolutions(self, z: Tensor) -> tuple[nn.Module, nn.Module]:
        wide, padding = z.shape[1], self.kernel // 2
        narrow = nn.Conv2d(wide, self.channels, self.kernel, self.stride, padding)
        if self.stride == 1:
            return narrow, nn.Conv2d(self.channels, wide, self.kernel, padding=padding)
        # narrow gives n = ⌊(H−1)/s⌋ + 1 rows and widen (n−1)·s + 1 + extra, so extra = (H−1) mod s restores H.
        extra = ((z.shape[2] - 1) % self.stride, (z.shape[3] - 1) % self.stride)
        return narrow, nn.ConvTranspose2d(self.channels, wide, self.kernel, self.stride, padding, extra)
