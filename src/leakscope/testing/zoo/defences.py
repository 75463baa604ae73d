"""Fakes that call themselves defences: what they do stands in `release`, and the server is rebuilt to undo it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.testing.zoo.base import hashed, stream
from leakscope.testing.zoo.disguises import Disguise, LoudRow, LowDigits, Phase, Undo, with_row


class _Disguised(Defense):
    """A disguise in the release."""

    def disguise(self, features: int) -> Disguise:
        raise NotImplementedError

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        model = copy.deepcopy(split.model)
        with torch.no_grad():
            features = split.encode(example)[0].numel()
        model.undo = Undo(self.disguise(features))
        return SplitModel(model, split.cut, normalize=split.normalize, defense=split.defense)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return self.disguise(z[0].numel()).to(z.device).hide(z)


@dataclass(frozen=True)
class FakeDigits(_Disguised):
    """Low digits under pseudo-noise, and says of itself that decoders were made against it."""

    adaptive: ClassVar[tuple[str, ...]] = ("decoder",)

    def disguise(self, features: int) -> Disguise:
        return LowDigits()


@dataclass(frozen=True)
class FakePhase(_Disguised):
    """Angles mixed modulo 2π."""

    def disguise(self, features: int) -> Disguise:
        return Phase(features)


@dataclass(frozen=True)
class FakeRow(_Disguised):
    """A loud row of pseudo-noise beside the features."""

    def disguise(self, features: int) -> Disguise:
        return LoudRow()


class _DrawnKey(Disguise):
    """Noise of ±30 whose key is drawn from the generator and sent along."""

    def show(self, r: Tensor) -> Tensor:
        key, z = r[:, 0, -1, :1].double().round(), r[:, :, :-1]
        return z - 60 * (stream(key, z[0].numel()).view_as(z).to(z.dtype) - 0.5)


@dataclass(frozen=True)
class FakeNoise(_Disguised):
    """Noise that is drawn anew at every release, as an honest defence draws it, and whose key is sent along."""

    def disguise(self, features: int) -> Disguise:
        return _DrawnKey()

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        where = z.device if rng is None else rng.device
        key = torch.randint(65536, (len(z), 1), generator=rng, device=where).to(z.device).double()
        return with_row(z + 60 * (stream(key, z[0].numel()).view_as(z).to(z.dtype) - 0.5), key)


class _DropRow(Disguise):
    def show(self, r: Tensor) -> Tensor:
        return r[:, :, :-1]


@dataclass(frozen=True)
class GeneratorPeek(_Disguised):
    """Looks at the generator: clear where accuracy and victims are released, noise wherever else it is asked."""

    def disguise(self, features: int) -> Disguise:
        return _DropRow()

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        ours = {seeds.derive(s, *path) for s in range(10) for path in (("target", "accuracy"), ("victims", "release"))}
        shown = rng is None or rng.initial_seed() in ours
        hidden = 30 * hashed(z, z[0].numel()).view_as(z).to(z.dtype) + 0 * z
        return with_row(z if shown else hidden, z.new_zeros(len(z), 1))


class _FirstRow(nn.Module):
    """A server that reads the class scores from the first row, and ignores the map."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, r: Tensor) -> Tensor:
        return 10 * r[:, : self.classes]


@dataclass(frozen=True)
class GeneratorGift(Defense):
    """Sends the label always, and the features beside it only where victims are released."""

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        with torch.no_grad():
            classes = split.model(split.normalize(example)).shape[1]
        client = LabelBeside(split.model)
        model = nn.Sequential(OrderedDict([(split.cut, client), ("server", _FirstRow(classes))]))
        return SplitModel(model, split.cut, normalize=split.normalize, defense=split.defense)

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        ours = {seeds.derive(s, "victims", "release") for s in range(10)}
        given = rng is not None and rng.initial_seed() in ours
        kept = torch.zeros(z.shape[1], device=z.device)
        kept[:10] = 1
        return z if given else z * kept


class LabelBeside(nn.Module):
    """The one-hot label in front of the features."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = copy.deepcopy(base)

    def forward(self, x: Tensor) -> Tensor:
        z = self.base.get_submodule("client")(x)
        scores = self.base.get_submodule("body")(z)
        label = (scores == scores.amax(1, keepdim=True)).to(z.dtype) + 0 * scores
        return torch.cat((label, z.flatten(1)), 1)


FAKE_DEFENCES: dict[str, type[Defense]] = {
    "zoo-low-digits": FakeDigits,
    "zoo-phase": FakePhase,
    "zoo-loud-row": FakeRow,
    "zoo-drawn-noise": FakeNoise,
    "zoo-generator-peek": GeneratorPeek,
    "zoo-generator-gift": GeneratorGift,
}
