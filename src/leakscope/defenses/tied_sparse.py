"""A dense layer with tied weights and a soft threshold before the cut."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._encoding import flat_features

#: A dictionary has D² numbers; at 8,192 features that is 268 MB.
_WIDEST = 8192


class TiedSparseLayer(nn.Module):
    """u = softshrink(z Wᵀ), then u W, in the shape of z."""

    def __init__(self, width: int, atoms: int, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.dictionary = nn.Parameter(F.normalize(torch.randn(atoms, width), dim=1))

    def forward(self, z: Tensor) -> Tensor:
        code = F.softshrink(z.flatten(1) @ self.dictionary.T, self.threshold)
        return (code @ self.dictionary).view_as(z)


class Coded(nn.Module):
    """A layer, with a tied sparse one behind it."""

    def __init__(self, body: nn.Module, code: TiedSparseLayer) -> None:
        super().__init__()
        self.body = body
        self.code = code

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        coded: Tensor = self.code(self.body(*args, **kwargs))
        return coded


class Activated(nn.Module):
    """An activation, with a tied sparse layer before it."""

    def __init__(self, code: TiedSparseLayer, body: nn.Module) -> None:
        super().__init__()
        self.code = code
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.body(self.code(x))
        return activated


#: What works on every number alone, and so has as many inputs as outputs.
_ACTIVATIONS = (nn.Sigmoid, nn.Tanh, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus)


def last_activation(model: nn.Module, cut: str) -> str | None:
    """The activation with which the cut layer ends: itself, or the last part of a sequence. None: it ends otherwise."""
    name, layer = cut, model.get_submodule(cut)
    while isinstance(layer, nn.Sequential) and len(layer):
        inner, layer = list(layer.named_children())[-1]
        name = f"{name}.{inner}"
    return name if isinstance(layer, _ACTIVATIONS) else None


@DEFENSES.register("tied-sparse", revision=2)
@dataclass(frozen=True)
class TiedSparse(Defense):
    """Mixes all features by one thresholded step of sparse coding, and sends the reconstruction.

        z̃ = act(u W),  u = softshrink(vec(a) Wᵀ, θ),  W ∈ R^(atoms × D) learned, its rows of norm 1 at the start

    with a the input of the activation act that ends the cut layer, as published (there a Sigmoid): the cut stays
    where it is, and so does the range of what is sent. With `place` "after", or where no activation ends the cut
    layer, act is left out, a is what the cut layer gives, and the cut moves to `CUT.code`. `atoms` is D where it is
    not given. New weights come from torch's ambient generator.

    What the option `SCA_new` in the code of Xia et al., "CEM", 2025, is: neither adversarial training, as
    its description says, nor the iterated sparse coding of Dibbo et al., "Sparse coding architecture", 2024.

    Differs from the paper: its strength of 0.3 had no effect and is left out, as are inhibition WWᵀ, which
    was multiplied by zero, and α.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    threshold: float = 0.01
    atoms: int | None = None
    place: Literal["before-activation", "after"] = "before-activation"

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < float("inf"):
            raise ValueError("threshold must be 0 or more, such as 0.01")
        if self.atoms is not None and self.atoms < 1:
            raise ValueError("atoms must be at least 1, or left out for as many as features")
        if self.place not in ("before-activation", "after"):
            raise ValueError(f"place must be before-activation or after, not {self.place!r}")

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        z = flat_features(split, example[:1])
        width = z.shape[1]
        if width > _WIDEST:
            raise UsageError(
                f"tied-sparse over the {width} features at {split.cut!r} needs {width}² weights; "
                f"cut where there are at most {_WIDEST}, or put a bottleneck first"
            )
        model = copy.deepcopy(split.model)
        layer = TiedSparseLayer(width, self.atoms or width, self.threshold).to(z)
        activation = last_activation(model, split.cut) if self.place == "before-activation" else None
        replaced = activation or split.cut
        parent, _, own = replaced.rpartition(".")
        body = model.get_submodule(replaced)
        setattr(model.get_submodule(parent), own, Activated(layer, body) if activation else Coded(body, layer))
        cut = split.cut if activation else f"{split.cut}.code"
        rebuilt = SplitModel(model, cut, normalize=split.normalize, defense=split.defense)
        return rebuilt.train(split.training)
