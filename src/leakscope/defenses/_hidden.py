"""Outputs of hidden layers in training."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leakscope.core.errors import unknown
from leakscope.core.model import SplitModel, cuts
from leakscope.defenses._encoding import deployed


class Hidden(nn.Module):
    """Keeps what named layers give out in the training step under way.

    The first pass since the last `clear` is kept: a defence that runs generated pictures through the
    network in the same step does not overwrite it. Layers in eval mode are not recorded.
    """

    learned: Tensor

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.register_buffer("learned", torch.zeros(len(names), dtype=torch.bool))  # layers that training changes
        self.outputs: dict[str, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def watch(self, split: SplitModel) -> None:
        """Start recording, unless it already is."""
        if self._handles:
            return
        for name in self.names:

            def record(module: nn.Module, args: Any, output: Tensor, name: str = name) -> None:
                if split.training:
                    self.outputs.setdefault(name, output)

            self._handles.append(split.model.get_submodule(name).register_forward_hook(record))

    def changing(self) -> list[Tensor]:
        """Outputs that depend on trained weights; those of layers that a stacked defence froze do not."""
        for index, name in enumerate(self.names):
            if name in self.outputs and self.outputs[name].requires_grad:
                self.learned[index] = True
        return [z for z in self.outputs.values() if z.requires_grad]

    def clear(self) -> None:
        self.outputs.clear()

    def stop(self) -> None:
        """Leave no trace on the network."""
        self.clear()
        while self._handles:
            self._handles.pop().remove()


def chosen_layers(split: SplitModel, example: Tensor, names: tuple[str, ...]) -> tuple[str, ...]:
    """`names`, which must exist; or, when there are none, one layer for each size of the features.

    Of consecutive maps of one height and width the first: the pooling or the strided convolution that made
    them. Of consecutive vectors of one length the last, unless it only flattens the map before. Maps as
    large as the picture are left out, and so are the scores.
    """
    known = {name for name, _ in split.model.named_modules() if name}
    for name in names:
        if name not in known:
            raise unknown("layer", name, known)
    if names:
        return names
    with deployed(split) as device:
        classes = split.run(example[:1].to(device)).scores.shape[1]
        places = cuts(split.model, example[:1].to(device), split.normalize)
    while places and places[-1].shape == (classes,):  # the scores, and modules that only pass them on
        places.pop()
    found: list[str] = []
    numbers = prod(example.shape[1:])
    for size, group in groupby(places, key=lambda cut: cut.shape[1:] if len(cut.shape) == 3 else cut.shape):
        run = list(group)
        place = run[0] if len(run[0].shape) == 3 else run[-1]
        if size != tuple(example.shape[2:]) and prod(place.shape) != numbers:
            found.append(place.name)
            numbers = prod(place.shape)
    return tuple(found) or (split.cut,)
