"""Honest defences that hide everything but the label and keep the network's use; and one that keeps nothing."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.testing.zoo.base import stream


class _Scores(nn.Module):
    """Class scores of what was sent: minus the distance to what each class sends."""

    def __init__(self, codes: Tensor) -> None:
        super().__init__()
        self.codes: Tensor
        self.register_buffer("codes", codes)

    def forward(self, r: Tensor) -> Tensor:
        return -torch.cdist(r.flatten(1), self.codes)


class _LabelOnly(Defense):
    """The client classifies by itself; what leaves follows from the predicted label, and fresh noise, alone."""

    def codes(self, classes: int) -> Tensor:
        """K×D: what is sent for each class."""
        raise NotImplementedError

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        with torch.no_grad():
            classes = split.model(split.normalize(example)).shape[1]
        whole = nn.Sequential(OrderedDict(network=split.model))
        model = nn.Sequential(OrderedDict([(split.cut, whole), ("server", _Scores(self.codes(classes)))]))
        return SplitModel(model, split.cut, normalize=split.normalize, defense=split.defense)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return self.codes(z.shape[1]).to(z.device)[z.argmax(1)]


@dataclass(frozen=True)
class LabelOnly(_LabelOnly):
    """Sends the predicted label as a one-hot vector."""

    def codes(self, classes: int) -> Tensor:
        return torch.eye(classes)


@dataclass(frozen=True)
class TwoNumbers(_LabelOnly):
    """Sends two numbers, the label's place on a circle, with a little fresh noise."""

    sigma: float = 0.05

    def codes(self, classes: int) -> Tensor:
        angle = torch.arange(classes) * (2 * math.pi / classes)
        return torch.stack((angle.cos(), angle.sin()), 1)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return _noisy(super().release(z, rng), self.sigma, rng)


@dataclass(frozen=True)
class NoisyScores(_LabelOnly):
    """Sends sixty-four numbers that spell the label, under noise as loud as they are."""

    sigma: float = 1.0

    def codes(self, classes: int) -> Tensor:
        keys = torch.arange(1, classes + 1, dtype=torch.float64)[:, None]
        return (stream(keys, 64).round() * 2 - 1).float()

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return _noisy(super().release(z, rng), self.sigma, rng)


@dataclass(frozen=True)
class CodedLabel(_LabelOnly):
    """Sends an embedding of the label, rounded to quarters."""

    def codes(self, classes: int) -> Tensor:
        keys = torch.arange(1, classes + 1, dtype=torch.float64)[:, None]
        return ((stream(keys, 16) * 8).round() / 4 - 1).float()


@dataclass(frozen=True)
class Constant(_LabelOnly):
    """Sends zeros whatever the picture: private, and useless."""

    def codes(self, classes: int) -> Tensor:
        return torch.eye(classes)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return torch.zeros_like(z)


def _noisy(z: Tensor, sigma: float, rng: torch.Generator | None) -> Tensor:
    where: Any = z.device if rng is None else rng.device
    return z + sigma * torch.randn(z.shape, generator=rng, device=where).to(z)


HONEST_DEFENCES: dict[str, type[Defense]] = {
    "zoo-label-only": LabelOnly,
    "zoo-two-numbers": TwoNumbers,
    "zoo-noisy-scores": NoisyScores,
    "zoo-coded-label": CodedLabel,
}
#: Private because it sends nothing: an audit must not call that a pass.
USELESS_DEFENCES: dict[str, type[Defense]] = {"zoo-constant": Constant}
