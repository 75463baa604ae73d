"""Gaussian noise at the cut, as much as a wanted bound on the attacker's error takes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.devices import widened
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._drawing import blank
from leakscope.nn.fisher import JUMPS, fisher_traces, unexplained

_PICTURES = 128  # of the training data, on which derivatives are taken
_PROBES = 8


class Scaled(nn.Module):
    """A layer whose outputs leave in units of the noise, and come back to their own behind the cut."""

    def __init__(self, body: nn.Module, sigma: Tensor) -> None:
        super().__init__()
        self.body = body
        self.units = Units(sigma)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        sent: Tensor = self.units(self.body(*args, **kwargs))
        return sent * self.units.sigma


class Units(nn.Module):
    """z / σ."""

    sigma: Tensor

    def __init__(self, sigma: Tensor) -> None:
        super().__init__()
        self.register_buffer("sigma", sigma)

    def forward(self, z: Tensor) -> Tensor:
        return z / self.sigma


@DEFENSES.register("fisher-noise")
@dataclass(frozen=True)
class FisherNoise(Defense):
    """Adds the Gaussian noise with which no attack without bias has a mean squared error below `bound`.

        z̃ = z/σ + n,  n ~ N(0, I),   σ² = bound · E_x‖∂z/∂x‖²_F / d,   so that 1/dFIL = d σ² / E_x‖∂z/∂x‖²_F = bound

    for pictures of d numbers in [0, 1]. Features are sent in units of the noise, and the server multiplies by σ again:
    noise of deviation one is all that the release does, and σ is kept with the weights. It is measured on 128
    training pictures before every epoch, so that the network learns with the noise that it will have, and once more
    when training is over. With bound 0 nothing is changed.

    The bound is one of unbiased attacks: an attacker who knows what pictures look like can do better, as the report's
    bounds with a prior and its attacks show. It needs features without jumps; others are refused.

    Maeng et al., "Bounding the invertibility of privacy-preserving instance encoding using Fisher information",
    NeurIPS 2023.

    Differs from the paper: σ is set for the mean of dFIL over training pictures, not for each picture, so that the
    amount of noise tells nothing about a picture; there is no regulariser that makes the encoder smoother.
    """

    #: A decoder trained on the defended features, with fresh draws, is the attack made against it.
    adaptive: ClassVar[tuple[str, ...]] = ("decoder",)

    bound: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.bound < float("inf"):
            raise ValueError("bound is a mean squared error: 0 or more, such as 0.01")

    def rebuild(self, split: SplitModel, example: Tensor) -> SplitModel:
        if self.bound == 0:
            return split
        device = next((p.device for p in split.parameters()), example.device)
        model = copy.deepcopy(split.model)
        parent, _, own = split.cut.rpartition(".")
        scaled = Scaled(model.get_submodule(split.cut), torch.ones((), device=device))
        setattr(model.get_submodule(parent), own, scaled.train(split.training))
        rebuilt = SplitModel(model, f"{split.cut}.units", normalize=split.normalize, defense=split.defense)
        self._set(rebuilt.train(split.training), example.to(device))
        return rebuilt

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        if self.bound > 0 and not isinstance(split.model.get_submodule(split.cut), Units):
            raise UsageError("fisher-noise must come last among the stacked defences that rebuild the network; move it")
        chosen = torch.randperm(len(data), generator=rng, device=rng.device)[:_PICTURES].cpu()
        aux = nn.Module()
        aux.register_buffer("pictures", data.images[chosen].clone())
        return aux

    def before_epoch(self, split: SplitModel, aux: nn.Module, data: ImageSet, epoch: int) -> None:
        self.finish(split, aux)

    def finish(self, split: SplitModel, aux: nn.Module) -> None:
        if self.bound > 0:
            self._set(split, aux.get_buffer("pictures"))

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        if self.bound == 0:
            return z
        return z + blank(z, rng).normal_(generator=rng).to(z.device)

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, Any]:
        return {} if self.bound == 0 else {"sigma": float(_units(split).sigma), "bound": self.bound}

    def _set(self, split: SplitModel, pictures: Tensor) -> None:
        """Measure σ in eval mode and keep it; modes are left as they were."""
        modes = {module: module.training for module in split.modules()}
        split.eval()
        units, rng = _units(split), seeds.generator(0, "fisher noise", device=pictures.device)
        try:
            half = len(pictures) // 2
            if half and unexplained(split.encode, pictures[:half], pictures[half : 2 * half], rng) > JUMPS:
                raise UsageError(
                    f"fisher-noise: features at {split.cut.removesuffix('.units')!r} jump as the picture changes, and "
                    "their derivative bounds nothing; cut elsewhere, or take gaussian"
                )
            traces = torch.cat([fisher_traces(split.encode, part, _PROBES, rng) for part in pictures.split(64)])
        finally:
            for module, mode in modes.items():
                module.training = mode
        squared = self.bound * widened(traces).mean() / pictures[0].numel()
        if squared > 0:  # features that never change tell nothing, with any noise
            units.sigma.mul_(squared.sqrt().to(units.sigma))  # derivatives were those of z over the σ of before


def _units(split: SplitModel) -> Units:
    return next(module for module in split.model.modules() if isinstance(module, Units))
