"""Encoders with known answers: an attack that cannot invert these says nothing about a defence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.results import Method, Spread, TargetRecord
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Target
from leakscope.experiments.workplace import Workplace
from leakscope.sparse import SparseCoding

#: An attack passes its positive control when it recovers this share of the pixel variance …
POSITIVE_LEAK = 0.9
#: … and finds the canary when it recovers this share.
CANARY_LEAK = 0.5


class PixelPath(nn.Module):
    """The picture itself, laid out like features of a given shape: lossless, so perfectly invertible.

    For a C×h×w map the picture is enlarged to a multiple of h×w and its blocks become channels
    (`pixel_unshuffle`); otherwise it is flattened.
    """

    def __init__(self, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.grid = feature_shape[1:] if len(feature_shape) == 3 and min(feature_shape[1:]) > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.grid is None:
            return x.flatten(1)
        h, w = self.grid
        scale = max(math.ceil(x.shape[2] / h), math.ceil(x.shape[3] / w))
        if (h * scale, w * scale) != tuple(x.shape[2:]):
            x = F.interpolate(x, size=(h * scale, w * scale), mode="bilinear", align_corners=False)
        return F.pixel_unshuffle(x, scale)


class _Scores(nn.Module):
    """A head whose class scores are all zero."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, z: Tensor) -> Tensor:
        return z.flatten(1)[:, :1].expand(-1, self.classes) * 0


def identity_control(feature_shape: tuple[int, ...], classes: int) -> SplitModel:
    """An encoder that sends the picture itself."""
    model = nn.Sequential()
    model.add_module("path", PixelPath(feature_shape))
    model.add_module("head", _Scores(classes))
    return SplitModel(model, "path").eval()


def easy_pictures(count: int, shape: tuple[int, int, int], name: str) -> ImageSet:
    """Smooth pictures of few degrees of freedom, which any working attack learns to rebuild from little data."""
    channels, height, width = shape
    rng = seeds.generator(0, "easy pictures", name)
    coarse = torch.rand(count, channels, min(4, height), min(4, width), generator=rng)
    images = F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    return ImageSet(images.contiguous(), torch.arange(count) % 2, ("even", "odd"))


class _Contraction(nn.Module):
    """`x + W₂ relu(W₁ x)` with weights so small that the block cannot fold: it has exactly one inverse."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, channels, 3, padding=1, bias=False)
        with torch.no_grad():
            self.second.weight.mul_(0.3)

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.second(F.relu(self.first(x)))
        return x + branch


def residual_control(image_shape: tuple[int, int, int], classes: int) -> SplitModel:
    """A residual network that can be inverted exactly: the control of attacks that peel blocks."""
    channels = image_shape[0]
    model = nn.Sequential()
    with seeds.ambient(0, "residual control"):
        stem = nn.Conv2d(channels, channels, 1, bias=False)
        nn.init.dirac_(stem.weight)
        model.add_module("stem", stem)
        model.add_module("block1", _Contraction(channels, 4 * channels))
        model.add_module("block2", _Contraction(channels, 4 * channels))
        model.add_module("head", _Scores(classes))
    return SplitModel(model, "block2").eval()


def sparse_control(image_shape: tuple[int, int, int], classes: int) -> SplitModel:
    """A sparse layer that leaves out next to nothing: the control of attacks that read codes by their dictionary."""
    channels = image_shape[0]
    model = nn.Sequential()
    layer = SparseCoding(channels, 16 * channels, 5, penalty=0.02, generator=seeds.generator(0, "sparse control"))
    model.add_module("code", layer)
    model.add_module("head", _Scores(classes))
    return SplitModel(model, "code").eval()


#: The control that an attack names: a network of known answer, from a shape and a number of classes.
CONTROLS: dict[str, Callable[..., SplitModel]] = {
    "identity": identity_control,
    "residual": residual_control,
    "sparse": sparse_control,
}


#: Components of the picture that a canary carries, at most.
_CARRIED = 32


class Canary(SplitModel):
    """The target with some of the picture added to its own features, before they are released.

    Features keep their shape, and everything that acts on them acts on the canary too: the defence, the server,
    the release in evaluation and in the attack. `signal` maps pictures to the k components that are planted, at
    `places` of the flattened features.
    """

    def __init__(self, target: SplitModel, directions: Tensor, center: Tensor, places: Tensor, sizes: Tensor) -> None:
        own = copy.deepcopy(target)
        super().__init__(own.model, own.cut, normalize=own.normalize, defense=own.defense)
        self.directions: Tensor
        self.center: Tensor
        self.places: Tensor
        self.sizes: Tensor
        for name, value in (("directions", directions), ("center", center), ("places", places), ("sizes", sizes)):
            self.register_buffer(name, value)
        self.eval()

    def signal(self, x: Tensor) -> Tensor:
        """N×k: the planted components, each with variance one over public pictures."""
        return (x.flatten(1) - self.center) @ self.directions

    def _forward(self, x: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
        def planted(z: Tensor) -> Tensor:
            flat = z.flatten(1).index_add(1, self.places, self.signal(x) * self.sizes)
            return hook(flat.view_as(z))

        return super()._forward(x, planted)


@torch.no_grad()
def canary(target: SplitModel, public: Tensor, rng: torch.Generator) -> Canary:
    """A canary of random amplitude at random places: two to four times what the released features vary there."""
    device = next((p.device for p in target.parameters()), public.device)
    sample = public[:500]
    flat = sample.flatten(1).double()
    center = flat.mean(0)
    _, lengths, directions = torch.linalg.svd(flat - center, full_matrices=False)
    noise = seeds.generator(0, "canary", "release", device=device)
    released = torch.cat([target.release(part.to(device), noise) for part in sample.split(100)]).flatten(1).cpu()
    varying = int((lengths > 1e-6 * lengths[0]).sum())
    count = max(1, min(_CARRIED, released.shape[1] // 2, varying))
    scaled = directions[:count].T / (lengths[:count] / len(flat) ** 0.5)
    places = torch.randperm(released.shape[1], generator=rng)[:count]
    spread = released.double().std(0)
    amplitude = 2 + 2 * torch.rand(count, generator=rng).double()
    # Where a feature hardly varies, by the size of those that do.
    sizes = amplitude * torch.maximum(spread[places], 0.1 * spread.mean()).clamp_min(1e-6)
    planted = Canary(target, scaled.float(), center.float(), places, sizes.float())
    return planted.to(device)


def canary_leak(planted: Canary, guess: Tensor, truth: Tensor, class_mean: Tensor) -> float:
    """The leak inside the planted components: 1 − Σ‖c(x) − c(x̂)‖² / Σ‖c(x) − c(x̄)‖²."""
    home = copy.deepcopy(planted).cpu()
    missed = (home.signal(truth) - home.signal(guess)).square().sum()
    unknown = (home.signal(truth) - home.signal(class_mean)).square().sum()
    return float(1 - missed / unknown.clamp_min(1e-12))


def stand_in(scene: Scene, split: SplitModel, key: str, name: str, spec: TargetSpec, place: Workplace) -> Target:
    """A network with a known answer, used as a target; `spec` is the target it stands in for."""
    named, none = Method((name,), name, {}, {}), Method(("none",), "none", {}, {})
    record = TargetRecord(
        key=key, trained=None, setting="control", data=scene.data_name, model=named, defense=none,
        cut=split.cut, seed=spec.seed, undefended=True, accuracy=None, calibration=None,
        input_shape=scene.splits.private.shape, classes=scene.splits.private.classes, feature_shape=(),
        client_compute=0.0, random_release=False, batch_dependent=False, separability=Spread(0.0, 0.0, 0.0),
        has_use=False, identity=spec.plain(),
    )  # fmt: skip
    return Target(record, split.to(place.device))
