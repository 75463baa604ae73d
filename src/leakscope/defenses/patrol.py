"""Filters of the client that the task does not need, removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._encoding import flat_features


class Pruning(nn.Module):
    """Importance of the filters of each layer, and which are left."""

    due: Tensor
    done: Tensor

    def __init__(self, layers: dict[str, nn.Conv2d]) -> None:
        super().__init__()
        self.names = tuple(layers)
        for index, layer in enumerate(layers.values()):
            self.register_buffer(f"importance{index}", torch.zeros(layer.out_channels))
            self.register_buffer(f"kept{index}", torch.ones(layer.out_channels))
        self.register_buffer("due", torch.tensor(False))
        self.register_buffer("done", torch.tensor(False))

    def layers(self, split: SplitModel) -> list[tuple[nn.Module, Tensor, Tensor]]:
        """Each layer with its importance and its mask."""
        return [
            (split.get_submodule(name), self.get_buffer(f"importance{index}"), self.get_buffer(f"kept{index}"))
            for index, name in enumerate(self.names)
        ]


def _client_convolutions(split: SplitModel, example: Tensor, above: int) -> dict[str, nn.Conv2d]:
    """Convolutions that run before the cut and have more than `above` filters."""
    reached: dict[str, nn.Conv2d] = {}
    handles = [
        module.register_forward_hook(lambda own, _, __, name=name: reached.update({name: own}))
        for name, module in split.named_modules()
        if isinstance(module, nn.Conv2d) and module.out_channels > above
    ]
    try:
        flat_features(split, example)
    finally:
        for handle in handles:
            handle.remove()
    return reached


@DEFENSES.register("patrol")
@dataclass(frozen=True)
class Patrol(Defense):
    """Removes, once, the share of the client's filters that matter least to the training loss.

        importance of a filter = mean over steps of |Σ w · ∂L/∂w|;   the least ⌊share · filters⌋ of each layer become 0

    at the share `at` of training; the rest of training is with what is left. Convolutions before the cut
    with more than `above` filters are pruned. A removed filter has weights and bias 0, so that its channel
    is the same for every picture.

    After Ding et al., "PATROL: privacy-oriented pruning for collaborative inference against model
    inversion attacks", 2024, in the form `pruning<e>` of the code of Xia et al., "CEM", 2025 (epoch 140 of 240).

    Differs from the paper: PATROL also moves the cut deeper and adds adversarial and Lipschitz terms:
    stack `adversarial` and choose a later cut. That code scores filters on one random input with a dummy
    loss, and adds a layer at the input; here they are scored by training itself, and nothing is added.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    share: float = 0.05
    at: float = 0.6
    above: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError("share must be in [0, 1): the part of the filters that goes")
        if not 0 <= self.at < 1:
            raise ValueError("at must be in [0, 1): the part of training before pruning")
        if self.above < 1:
            raise ValueError("above must be at least 1: layers with no more filters are left alone")

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.share == 0:
            return nn.Module()
        layers = _client_convolutions(split, data.images[:1], self.above)
        if not any(int(self.share * layer.out_channels) for layer in layers.values()):
            raise UsageError(
                f"patrol: a share of {self.share} is no filter of any client layer with more than {self.above}; "
                "raise share, lower above or cut later"
            )
        return Pruning(layers)

    def penalty(self, step: Step) -> Tensor | None:
        if isinstance(step.aux, Pruning):
            step.aux.due.fill_(step.epoch >= self.at * step.epochs)
        return None

    @torch.no_grad()
    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        if not isinstance(aux, Pruning):
            return
        for layer, importance, kept in aux.layers(split):
            assert isinstance(layer, nn.Conv2d)
            if not aux.done:
                if layer.weight.grad is not None:
                    now = (layer.weight * layer.weight.grad).flatten(1).sum(1).abs()
                    importance.mul_(0.99).add_(0.01 * now)
                if aux.due and (count := int(self.share * len(kept))):
                    kept[importance.topk(count, largest=False).indices] = 0
            layer.weight.mul_(kept.view(-1, 1, 1, 1))
            if layer.bias is not None:
                layer.bias.mul_(kept)
        aux.done.logical_or_(aux.due)

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        if not isinstance(aux, Pruning):
            return {}
        return {name: int((kept == 0).sum()) for name, (_, _, kept) in zip(aux.names, aux.layers(split), strict=True)}
