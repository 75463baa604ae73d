"""The sparse-coding architecture: sparse layers in place of convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.errors import UsageError, unknown
from leakscope.core.model import SplitModel
from leakscope.defenses._sparse_layers import (
    GRADIENTS,
    Memory,
    PlacedCoding,
    convolutions,
    exchanged,
    placed,
    reads_pictures,
)


@DEFENSES.register("sca", revision=2)
@dataclass(frozen=True)
class Sca(Defense):
    """Exchanges convolutions for sparse layers of the same shape: what they pass on is a sparse code.

        z = argmin_{R≥0} ½‖pad(x̂) − rec(R)‖² + λΣR        x̂: the layer's input, standardised by picture

    `layers` are convolutions of any network, by name; left empty, the first two that run. Everything
    else stays, cut and names included, so the same network with `none` is its undefended twin. The
    first sparse layer keeps its random dictionary, and its codes are computed once for each training
    picture; the others learn theirs by the paper's update after every step,

        Ω_f ← Ω_f + η/(1 + n_f) · Σ R_f·E,   n_f = active codes of f in the batch

    with `update` = η (0: not at all), and by gradients through the solution too, as in the paper's experiments
    (its footnote 3); then gradients also reach what lies before a sparse layer, such as the normalisation between
    two. `backprop` false leaves them out, which halves the time of a step. New dictionaries come from torch's
    ambient generator. Notes give density and objective of every layer.

    Dibbo et al., "Improving robustness to model inversion attacks via sparse coding architectures",
    ECCV 2024; spec/sca.md.

    Differs from the paper: its code never calls the update and runs 500 steps of LCA in half
    precision; here codes are solved to a tolerance, in the network's own precision.
    """

    #: Both read what a sparse code keeps: by its own dictionary; by learning, and gradients through the solver.
    #: `search` has the gradients alone, takes six times as long as both and was never the strongest.
    adaptive: ClassVar[tuple[str, ...]] = ("analytic-sparse", "auto")
    #: How many convolutions are exchanged when none is named.
    usual: ClassVar[int] = 2

    sparsity: float = 0.25  # λ
    layers: tuple[str, ...] = ()
    kernel: int | None = None  # None: the convolution's own
    update: float = 0.01  # η
    backprop: bool = True
    standardize: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < float("inf"):
            raise ValueError(f"sparsity is the weight λ: 0 or more, such as 0.25, not {self.sparsity}")
        if self.kernel is not None and (self.kernel < 1 or self.kernel % 2 == 0):
            raise ValueError(f"kernel must be odd, such as 5 or 7, not {self.kernel}")
        if not 0 <= self.update < 1:
            raise ValueError("update is the rate of the dictionary: 0 (fixed) or more and below 1, such as 0.01")
        if len(set(self.layers)) < len(self.layers):
            raise ValueError("layers names a convolution twice; name each once")

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        return exchanged(split, example, self.chosen(split, example), self._layer)

    def chosen(self, split: SplitModel, example: Tensor) -> tuple[str, ...]:
        """The convolutions to exchange, in the order they run."""
        names = list(convolutions(split, example))
        for name in self.layers:
            if name not in names:
                raise unknown("convolution", name, names)
        if len(names) < self.usual and not self.layers:
            raise UsageError(
                f"{self.kind_name} exchanges {self.usual} convolutions and this network has {len(names)}; "
                "take a convolutional network such as sca-net, or name layers"
            )
        return tuple(name for name in names if name in self.layers) if self.layers else tuple(names[: self.usual])

    def _layer(self, position: int, conv: nn.Conv2d) -> PlacedCoding:
        if conv.groups != 1 or set(conv.dilation) != {1}:
            raise UsageError("sparse layers have neither groups nor dilation; name plain convolutions in layers")
        sides = (self.kernel, self.kernel) if self.kernel else (conv.kernel_size[0], conv.kernel_size[1])
        layer = PlacedCoding(
            conv.in_channels,
            conv.out_channels,
            sides,
            stride=(conv.stride[0], conv.stride[1]),
            penalty=self.sparsity,
            standardize=self.standardize,
            backprop=self.backprop and position > 0,
            learns=self.update > 0 and position > 0,
        )
        layer.implicit = GRADIENTS
        return layer

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        del rng
        first = next(iter(placed(split).values()))
        device = next(split.parameters()).device
        if reads_pictures(split, first, data.images[:2].to(device)):
            first.memory = Memory(len(data))
        return nn.Module()

    def trainable(self, split: SplitModel) -> set[str]:
        """Dictionaries are the update's, unless gradients were asked for; the first is nobody's."""
        fixed = {id(layer.dictionary) for layer in placed(split).values() if not layer.backprop}
        return {name for name, parameter in split.named_parameters() if id(parameter) not in fixed}

    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        for layer in placed(split).values():
            layer.learn(self.update)
            if layer.backprop:
                layer.renormalize()

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        coded = {}
        for name, layer in placed(split).items():
            layer.memory = layer.batch = None  # training is over
            if layer.last is not None:
                coded[name] = {"density": layer.last.density, "objective": layer.last.objective}
        return {"sparse_layers": coded}
