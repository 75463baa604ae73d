"""Transfer learning: private data touch the last layers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.errors import UsageError, unknown
from leakscope.core.model import SplitModel


@dataclass(frozen=True)
class Published:
    """A row of the paper's tables."""

    layer: str  # the last that is frozen
    tuned: float  # millions of parameters that private data may touch
    inferred: bool = False  # from the count alone: the code does not say which layers


#: Names of layers as in torchvision (VGG16-BN, ResNets, MaxViT-T), timm (ResNeSt-101) and `ir`.
PUBLISHED: dict[str, Published] = {
    "vgg16-block3": Published("features.23", 15.0),
    "vgg16": Published("features.26", 13.9),
    "vgg16-conv4_2": Published("features.29", 11.5),
    "vgg16-block4": Published("features.33", 9.1),
    "vgg16-head": Published("features", 2.1),
    "ir152": Published("body.46", 17.8),
    "facenet64": Published("body.5", 34.4),
    "resnet18": Published("layer3", 8.9),
    "resnet34": Published("layer1", 21.14, inferred=True),
    "resnet50": Published("layer3.5.bn2", 32.9, inferred=True),
    "resnet101": Published("layer3", 16.05),
    "maxvit": Published("blocks.2", 18.3),
    "resnest101": Published("layer3.14", 27.9, inferred=True),
}


@DEFENSES.register("tl-dmi")
@dataclass(frozen=True)
class TlDmi(Defense):
    """Trains on private pictures the last layers alone; the first keep what other, public pictures taught them.

        f = C ∘ Enc,   Enc fixed,   min over θ_C of CE on private pictures

    What is frozen is named in one of three ways: all layers up to and including `layer`; the longest run of
    first layers with at most the `share` of the parameters; or as in the row of `PUBLISHED` called `network`
    (vgg16, vgg16-block3, vgg16-conv4_2, vgg16-block4, vgg16-head, resnet18, resnet34, resnet50, resnet101, ir152,
    facenet64, maxvit, resnest101). Layers are in the order in which the network holds them.

    What the first layers know they learn before: in the `pretraining` of the audit, on public classes, or in the
    weights that are given. A network that has learned nothing is refused, unless `random_ok` asks for layers
    frozen at random weights, as the paper has them for the ResNet-34 that VMI attacks.

    With `bn` "eval" frozen layers are in eval mode, as frozen should mean; with "train", as published, running
    statistics of frozen batch normalisation go on to follow private data. `tuned` "first" is the control of
    the paper: the first layers and the scores are trained, and the rest is frozen.

    Ho et al., "Model inversion robustness: can transfer learning help?", CVPR 2024.

    Differs from the paper: its published code leaves the stems of IR networks free by a spelling error, freezes
    FaceNet64 at random weights, and picks the best epoch on the test set.
    """

    layer: str | None = None
    share: float | None = None
    network: str | None = None
    bn: Literal["eval", "train"] = "eval"
    tuned: Literal["last", "first"] = "last"
    random_ok: bool = False

    @property
    def keeps_first_weights(self) -> bool:  # type: ignore[override]
        """Whether the network must have learned something before: not when random layers are asked for."""
        return not self.random_ok

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.layer, self.share, self.network)) != 1:
            raise ValueError("give one of layer, share and network, to say what is frozen; share=0 is nothing")
        if self.network is not None and self.network not in PUBLISHED:
            raise ValueError(f"unknown network {self.network!r}; choose from {', '.join(PUBLISHED)}, or give layer")
        if self.share is not None and not 0 <= self.share < 1:
            raise ValueError("share must be in [0, 1): the part of the parameters that is frozen")
        if self.bn not in ("eval", "train") or self.tuned not in ("last", "first"):
            raise ValueError("bn must be eval or train, and tuned last or first")

    def frozen(self, split: SplitModel) -> list[str]:
        """Names of the modules, within the network, that are frozen."""
        modules = list(split.model.named_modules())
        if self.share is not None:
            first = self._by_share(modules, self.share)
        else:
            first = self._by_name(modules, PUBLISHED[self.network].layer if self.network else str(self.layer))
        if self.tuned == "last":
            return first
        head = [name for name, module in modules if isinstance(module, nn.Linear)][-1:]
        return [name for name, _ in modules if name not in {*first, *head}]

    @staticmethod
    def _by_name(modules: list[tuple[str, nn.Module]], layer: str) -> list[str]:
        names = [name for name, _ in modules]
        if layer not in names or not layer:
            raise unknown("layer", layer, [name for name in names if name])
        last = max(i for i, name in enumerate(names) if name == layer or name.startswith(f"{layer}."))
        return names[: last + 1]

    @staticmethod
    def _by_share(modules: list[tuple[str, nn.Module]], share: float) -> list[str]:
        counts = [sum(p.numel() for p in module.parameters(recurse=False)) for _, module in modules]
        room, kept = share * sum(counts), 0
        names: list[str] = []
        for (name, _), count in zip(modules, counts, strict=True):
            kept += count
            if kept > room:
                break
            names.append(name)
        return names

    def trainable(self, split: SplitModel) -> set[str]:
        frozen = set(self.frozen(split))
        names = {
            f"model.{name}.{own}" if name else f"model.{own}"
            for name, module in split.model.named_modules()
            if name not in frozen
            for own, _ in module.named_parameters(recurse=False)
        }
        if not names:
            raise UsageError("tl-dmi freezes every parameter, and nothing can be learned; freeze fewer layers")
        return names

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        self.trainable(split)  # says what is wrong with the names before an epoch is spent
        return nn.Module()

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        if self.bn == "eval":
            for module in _whole(split.model, set(self.frozen(split))):
                module.training = False

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        names = self.trainable(split)
        count = {name: p.numel() for name, p in split.named_parameters()}
        return {"trained_parameters": sum(count[name] for name in names), "parameters": sum(count.values())}


def _whole(model: nn.Module, names: set[str]) -> list[nn.Module]:
    """The named modules without a part that is not named: a container may run through trained layers too."""
    found = []
    for name in names:
        module, prefix = model.get_submodule(name), f"{name}." if name else ""
        if all(f"{prefix}{inner}" in names for inner, _ in module.named_modules() if inner):
            found.append(module)
    return found
