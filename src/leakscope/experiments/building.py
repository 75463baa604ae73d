"""A target before it is trained: its network, cut and defended, with the weights that it was given."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from leakscope.core import seeds
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.models.architecture import Architecture
from leakscope.models.resolve import instantiate
from leakscope.models.weights import fits, load_weights, read_state


def build_split(
    architecture: Architecture,
    cut: str,
    defense: Defense,
    *,
    example: Tensor,
    classes: int,
    seed: int,
    weights: Path | None = None,
) -> SplitModel:
    """The network with its defence, initialised from the seed's own generator; `example` are two pictures.

    Given weights are those of the network alone, or, where they do not fit that, those of the network as the
    defence rebuilt it: what `leakscope train --save` writes.
    """
    channels, height, width = example.shape[1:]
    with seeds.ambient(seed, "target", "init"):
        model = instantiate(architecture, (channels, height, width), classes)
        whole = weights is not None and fits(model, read_state(weights))
        if weights is not None and whole:
            load_weights(model, weights)
        split = SplitModel(model, cut, normalize=architecture.normalization(), defense=defense)
        split = defense.rebuild(split.eval(), example)
        if weights is not None and not whole:
            load_weights(split if fits(split, read_state(weights)) else split.model, weights)
        architecture.fill(split)
        return split
