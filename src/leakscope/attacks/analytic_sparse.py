"""Sparse layers undone by their own dictionaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks._affine import Affine, fit_affine
from leakscope.attacks._release import PublicReleases
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.devices import widened
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, View
from leakscope.sparse import SparseCoding

_CHUNK = 128  # pictures encoded at once


@ATTACKS.register("analytic-sparse")
@dataclass(frozen=True)
class AnalyticSparse(Attack):
    """Reads a sparse code by its dictionary: x̂ = affine ∘ rec ∘ BN⁻¹ ∘ rec ∘ tail⁻¹, with nothing to train.

    A code rebuilds the input of its layer up to the error sparsity leaves: rec(R) ≈ x. From the cut
    backwards, an affine least-squares map takes what is released to the codes of the last sparse layer
    (row by row or pixel by pixel where shapes allow, else all at once); a dictionary rebuilds that
    layer's input; one affine map a channel, the inverse of batch normalisation and of the mean loss of
    scale, gives the codes of the layer before; and so on. Each sparse layer forgets mean and scale of
    its input: those of the picture are guessed from statistics of the rebuilt one, by least squares too.
    All fits use the attacker's own pictures.

    Against Dibbo et al., "Improving robustness to model inversion attacks via sparse coding architectures", 2024,
    after spec/sca.md §6, which gives it those two numbers a picture from an oracle.
    """

    pictures: int = 512  # of the attacker's own, to fit on
    strengths: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 1.0)

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.QUERY, Access.ENCODER})
    averages_noise: ClassVar[bool] = True
    control: ClassVar[str] = "sparse"

    def __post_init__(self) -> None:
        if self.pictures < 2:
            raise ValueError("pictures must be at least 2, such as 512")
        if not self.strengths or min(self.strengths) <= 0:
            raise ValueError("strengths must be one or more positive numbers, such as (1e-4, 1e-2)")

    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        device = next((p.device for p in split.parameters()), torch.device("cpu"))
        if not any(isinstance(module, SparseCoding) for module in split.modules()):
            return "no sparse layer in this network to read; use ridge or decoder"
        with torch.no_grad(), _Watch(split) as watch:
            split.encode(torch.zeros(1, *image_shape, device=device))
        return None if watch.codes else "no sparse layer before the cut to read; use ridge or decoder"

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        releases = PublicReleases(view, rng)
        index = torch.arange(min(self.pictures, len(releases)))
        if len(index) < 2:
            return Prepared({"mean": view.public.images.mean(0)})
        pictures = releases.images(index)
        z = torch.cat([releases.draw(part) for part in index.split(_CHUNK)])
        layers, codes = _coded(view.encoder, pictures)
        tensors: dict[str, Tensor] = {}
        estimate = fit_affine(z, codes[-1] if codes else pictures, self.strengths).stored(tensors, "top")(z)
        for number in reversed(range(len(layers))):
            size = pictures.shape[2:] if number == 0 else codes[number - 1].shape[2:]
            rebuilt = layers[number].reconstruct(estimate.clamp_min(0), tuple(size))
            if number > 0:
                rebuilt = _resized(rebuilt, codes[number - 1])
                estimate = _fit_channels(rebuilt, codes[number - 1], tensors, number)
            else:
                estimate = _fit_pictures(rebuilt, pictures, tensors)
        error = float((estimate.clamp(0, 1) - pictures).square().mean())
        return Prepared(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            Diagnostics(details={"sparse_layers": len(layers), "pictures": len(pictures), "fitted_mse": error}),
        )

    @torch.no_grad()
    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del rng
        if seen.features is None:
            raise ValueError("analytic-sparse rebuilds observed inputs; it was handed no features")
        learnt = {name: tensor.to(view.device) for name, tensor in prepared.tensors.items()}
        if "mean" in learnt:
            return Reconstruction(learnt["mean"].expand(len(seen), *view.image_shape).clone())
        layers, codes = _coded(view.encoder, view.public.images[:2].to(view.device))
        estimate = Affine.read(learnt, "top")(seen.features.to(view.device))
        for number in reversed(range(len(layers))):
            size = view.image_shape[1:] if number == 0 else codes[number - 1].shape[2:]
            rebuilt = layers[number].reconstruct(estimate.clamp_min(0), tuple(size))
            if number > 0:
                rebuilt = _resized(rebuilt, codes[number - 1])
                estimate = rebuilt * learnt[f"slope{number}"] + learnt[f"shift{number}"]
            else:
                estimate = _placed(rebuilt, learnt["scale"])
        images = estimate.reshape(len(seen), *view.image_shape)
        images = images.clamp(0, 1) if view.public.pixels else images
        return Reconstruction(images.contiguous(), prepared.diagnostics)


class _Watch:
    """Sparse layers that run inside the block, in order, with the codes they give."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.codes: dict[SparseCoding, list[Tensor]] = {}

    def __enter__(self) -> _Watch:
        self.handles = [
            module.register_forward_hook(self._note)
            for module in self.network.modules()
            if isinstance(module, SparseCoding)
        ]
        return self

    def _note(self, module: nn.Module, args: object, output: Tensor) -> None:
        assert isinstance(module, SparseCoding)
        self.codes.setdefault(module, []).append(output.detach())

    def __exit__(self, *problem: object) -> None:
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def _coded(encoder: nn.Module, pictures: Tensor) -> tuple[list[SparseCoding], list[Tensor]]:
    """The sparse layers before the cut, first to last, and their codes of the pictures."""
    with _Watch(encoder) as watch:
        for part in pictures.split(_CHUNK):
            encoder(part)
    return list(watch.codes), [torch.cat(parts) for parts in watch.codes.values()]


def _resized(x: Tensor, like: Tensor) -> Tensor:
    if x.shape[2:] == like.shape[2:]:
        return x
    return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)


def _fit_channels(x: Tensor, target: Tensor, tensors: dict[str, Tensor], number: int) -> Tensor:
    """The best slope and shift for each channel, and what they make of x."""
    axes = (0, 2, 3)
    x_mean, target_mean = x.mean(axes, keepdim=True), target.mean(axes, keepdim=True)
    spread = (x - x_mean).square().sum(axes, keepdim=True)
    slope = ((x - x_mean) * (target - target_mean)).sum(axes, keepdim=True) / spread.clamp_min(1e-12)
    tensors[f"slope{number}"], tensors[f"shift{number}"] = slope, target_mean - slope * x_mean
    return x * slope + tensors[f"shift{number}"]


def _statistics(x: Tensor) -> Tensor:
    """What a rebuilt picture says about the scale it lost: N×7."""
    flat = x.flatten(1)
    low, high = torch.quantile(flat, torch.tensor([0.1, 0.9], device=x.device, dtype=x.dtype), dim=1)
    columns = (torch.ones_like(low), flat.mean(1), flat.std(1), flat.amin(1), flat.amax(1), low, high)
    return torch.stack(columns, 1)


def _placed(x: Tensor, scale: Tensor) -> Tensor:
    slope, shift = (_statistics(x) @ scale).unbind(1)
    return x * slope.view(-1, 1, 1, 1) + shift.view(-1, 1, 1, 1)


def _fit_pictures(x: Tensor, pictures: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Slope and shift of each picture, predicted from statistics by least squares."""
    flat, truth = x.flatten(1), pictures.flatten(1)
    centered = flat - flat.mean(1, keepdim=True)
    slope = (centered * truth).sum(1) / centered.square().sum(1).clamp_min(1e-12)
    shift = truth.mean(1) - slope * flat.mean(1)
    known = widened(_statistics(x))
    gram = known.T @ known
    gram += 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    tensors["scale"] = torch.linalg.solve(gram, known.T @ widened(torch.stack((slope, shift), 1))).to(x)
    return _placed(x, tensors["scale"])
