"""A fully connected network."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from math import prod, sqrt

import torch
from torch import nn

from leakscope.models.architecture import MODELS, Architecture


@MODELS.register("mlp")
@dataclass(frozen=True)
class MLP(Architecture):
    """Linear layers with ReLU between them: D → widths[0] → … → classes, cuts `relu1`, `relu2`, ….

    `drift` = α draws weights and biases of layer k from N(u_k, 1), u_k ~ N(0, α), as MixCon's
    synthetic experiment does; that network is `MLP((500, 2, 100), drift=α)`, cut at `relu2`.

    Li et al., "MixCon: Adjusting the Separability of Data Representations for Harder Data Recovery", 2020.
    """

    widths: tuple[int, ...] = (256, 64)
    drift: float | None = None  # α, a variance; None: PyTorch's initialisation

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise ValueError("widths must name at least one hidden layer of at least one unit, such as [256, 64]")
        if self.drift is not None and self.drift < 0:
            raise ValueError("drift is a variance: 0 or more")

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for number, (inputs, outputs) in enumerate(pairwise((prod(image_shape), *self.widths)), start=1):
            layers[f"hidden{number}"] = nn.Linear(inputs, outputs)
            layers[f"relu{number}"] = nn.ReLU()
        layers["output"] = nn.Linear(self.widths[-1], classes)
        if self.drift is not None:
            for layer in layers.values():
                if isinstance(layer, nn.Linear):
                    mean = sqrt(self.drift) * torch.randn((), device="cpu").item()  # also when planned without memory
                    nn.init.normal_(layer.weight, mean, 1.0)
                    nn.init.normal_(layer.bias, mean, 1.0)
        return nn.Sequential(layers)

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("relu1", f"relu{len(self.widths)}")))
