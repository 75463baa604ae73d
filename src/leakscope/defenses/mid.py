"""A variational bottleneck before the scores."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import Pass, SplitModel
from leakscope.defenses._drawing import blank
from leakscope.defenses._scoring import scoring_layer
from leakscope.defenses._weight import refuse_weight


def divergence(mean: Tensor, deviation: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)), summed over features: N×… to N."""
    terms = 1 + 2 * deviation.log() - mean.square() - deviation.square()
    return -0.5 * terms.flatten(1).sum(1)


class Variational(nn.Module):
    """Features to a mean and a deviation, a draw from them, and scores of the draw."""

    def __init__(self, features: int, width: int, outputs: int, at_release: bool) -> None:
        super().__init__()
        self.statistics = nn.Linear(features, 2 * width)
        self.scores = nn.Linear(width, outputs)
        self.at_release = at_release
        self.rng: torch.Generator | None = None  # of the pass under way
        self.divergence: Tensor | None = None  # of the first pass in training since it was last cleared

    def forward(self, x: Tensor) -> Tensor:
        mean, raw = self.statistics(x).chunk(2, -1)
        deviation = F.softplus(raw - 5)
        if self.training and self.divergence is None:
            self.divergence = divergence(mean.float(), deviation.float()).mean()
        if not (self.training or self.at_release):
            z = mean
        elif self.rng is None:
            z = mean + deviation * torch.randn_like(mean)
        else:
            z = mean + deviation * blank(mean, self.rng).normal_(generator=self.rng).to(mean.device)
        scores: Tensor = self.scores(z)
        return scores


class VariationalSplit(SplitModel):
    """Hands the generator of a pass to the bottleneck inside the network, as it is handed to the release."""

    def run(self, x: Tensor, rng: torch.Generator | None = None) -> Pass:
        layers = [module for module in self.model.modules() if isinstance(module, Variational)]
        for layer in layers:
            layer.rng = rng
        try:
            return super().run(x, rng)
        finally:
            for layer in layers:
                layer.rng = None


@DEFENSES.register("mid")
@dataclass(frozen=True)
class Mid(Defense):
    """Limits what the scores know of the picture: they are computed from a noisy, penalised code.

        f → (μ, s),  σ = softplus(s − 5),  z = μ + σ ε,  scores = W z + b
        L = β · mean_i KL( N(μ_i, σ_i²) ‖ N(0, 1) )

    with β the `weight`, f the input of `layer` and z of `width` numbers (half of f's when not given). `layer` is
    the linear layer that is replaced: the last one, which gives the scores, unless another is named. So the
    passage is between the last features and the scores; features at an earlier cut are not made noisy, and only
    training may change what they tell. New weights come from torch's ambient generator.

    Wang et al., "Improving robustness to model inversion attacks via mutual information regularization",
    AAAI 2021, with the variational bound of Alemi et al., "Deep variational information bottleneck", 2017.
    β: VGG16 0.002 to 0.02, ResNet-101 0.01 to 0.05. Noise stays on when the network is deployed; `at_release`
    false sends μ instead.

    Differs from the paper: nothing known. A published baseline of this name penalises the mean and deviation
    of all scores of a batch (Dibbo et al., "Sparse coding architecture", 2024), which is no bottleneck.
    """

    adaptive: ClassVar[tuple[str, ...]] = ("auto",)

    weight: float = 0.01
    width: int | None = None
    layer: str | None = None
    at_release: bool = True

    def __post_init__(self) -> None:
        refuse_weight(self.weight)
        if self.width is not None and self.width < 1:
            raise ValueError("width must be at least 1, or left out for half of the features")

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        if self.weight == 0:
            return split
        name = self.layer if self.layer is not None else scoring_layer(split, example)
        if name is None:
            raise UsageError("mid: the scores of this network are not those of a linear layer; name one with layer=")
        model = copy.deepcopy(split.model)
        linear = dict(model.named_modules()).get(name)
        if not isinstance(linear, nn.Linear):
            raise UsageError(f"mid: {name!r} is not a linear layer of this network; name one, or leave layer out")
        width = self.width or max(1, linear.in_features // 2)
        passage = Variational(linear.in_features, width, linear.out_features, self.at_release).to(linear.weight)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, passage)
        rebuilt = VariationalSplit(model, split.cut, normalize=split.normalize, defense=split.defense)
        return rebuilt.train(split.training)

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.weight > 0 and not isinstance(split, VariationalSplit):
            raise UsageError("mid must come last among the stacked defences that rebuild the network; move it")
        return nn.Module()

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        self.after_step(split, aux)

    def penalty(self, step: Step) -> Tensor | None:
        if self.weight == 0:
            return None
        _, layer = _passage(step.split)
        assert layer.divergence is not None
        return self.weight * layer.divergence

    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        if self.weight > 0:
            _passage(split)[1].divergence = None

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        if self.weight == 0:
            return {}
        name, layer = _passage(split)
        layer.divergence = None  # it holds the graph of the last step, and a network is copied after training
        return {"layer": name, "width": layer.scores.in_features}


def _passage(split: SplitModel) -> tuple[str, Variational]:
    return next((name, layer) for name, layer in split.model.named_modules() if isinstance(layer, Variational))
