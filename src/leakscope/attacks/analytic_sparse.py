"""Sparse layers undone by their own dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks._affine import Affine, fit_affine
from leakscope.attacks._release import PublicReleases
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.chunks import fitting
from leakscope.core.devices import brought, widened
from leakscope.core.metering import forward_only
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, View
from leakscope.sparse import SparseCoding

_CHUNK = 128  # pictures encoded at once
_HELD = 0.2  # share of the pictures on which strength and trust are chosen
_LEAST = 4  # pictures to fit a chain on; with fewer the mean picture is all there is


@ATTACKS.register("analytic-sparse", revision=2)
@dataclass(frozen=True)
class AnalyticSparse(Attack):
    """Reads a sparse code by its dictionary: x̂ = affine ∘ rec ∘ BN⁻¹ ∘ rec ∘ tail⁻¹, with nothing to train.

    A code rebuilds the input of its layer up to the error sparsity leaves: rec(R) ≈ x. From the cut
    backwards, an affine least-squares map takes what is released to the codes of the last sparse layer
    (row by row or pixel by pixel where shapes allow, else all at once); a dictionary rebuilds that
    layer's input; one affine map a channel, the inverse of batch normalisation and of the mean loss of
    scale, gives the codes of the layer before; and so on. Each sparse layer forgets mean and scale of
    its input: those of the picture are guessed from statistics of the rebuilt one, by least squares too.

    All fits use the attacker's own pictures, a fifth of which is held out. On those the strength of the first map
    is chosen by the error of the whole chain, and the picture is drawn towards the mean picture,

        x̂ ← x̄ + γ(x̂ − x̄),   γ = argmin over [0, 1] of the held-out error,

    so that a chain whose errors grow from layer to layer falls back, and is never worse than the mean picture there.
    The same is tried at every layer, towards its mean code, and kept where the held-out pictures are rebuilt better.
    A picture's guessed scale stays within what was met in fitting.

    Against Dibbo et al., "Improving robustness to model inversion attacks via sparse coding architectures", 2024,
    after spec/sca.md §6, which gives it those two numbers per picture from an oracle.
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

    @torch.no_grad()
    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        releases = PublicReleases(view, rng)
        index = torch.arange(min(self.pictures, len(releases)))
        if len(index) < _LEAST:
            return Prepared({"mean0": view.public.images.mean(0, keepdim=True)})
        pictures = releases.images(index)
        z = torch.cat([releases.draw(part) for part in index.split(_CHUNK)])
        layers, codes = _coded(view.encoder, pictures)
        held = max(1, round(_HELD * len(z)))
        wanted = [pictures, *codes]
        chains = [
            (Chain.fitted(layers, z, wanted, strength, held, cautious=cautious), strength)
            for strength in self.strengths
            for cautious in (False, True)
        ]
        errors = torch.stack([chain.held_error for chain, _ in chains if chain.held_error is not None]).tolist()
        best = min(range(len(chains)), key=errors.__getitem__)
        chain, strength = chains[best]
        blank = float((pictures[:held] - chain.tensors["mean0"]).square().mean())
        return Prepared(
            {name: tensor.contiguous() for name, tensor in chain.tensors.items()},
            Diagnostics(
                details={
                    "sparse_layers": len(layers),
                    "pictures": len(pictures),
                    "strength": strength,
                    "heldout_mse": errors[best],
                    "heldout_mse_of_the_mean": blank,
                    "trust": torch.stack([chain.tensors[f"trust{number}"] for number in range(len(wanted))]).tolist(),
                }
            ),
        )

    @torch.no_grad()
    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del rng
        if seen.features is None:
            raise ValueError("analytic-sparse rebuilds observed inputs; it was handed no features")
        learnt = {name: brought(tensor, view.device) for name, tensor in prepared.tensors.items()}
        if "top.weights" not in learnt:
            return Reconstruction(learnt["mean0"].expand(len(seen), *view.image_shape).clone())
        layers, _ = _coded(view.encoder, view.public.images[:2].to(view.device))
        images = Chain(layers, learnt)(seen.features.to(view.device)).reshape(len(seen), *view.image_shape)
        images = images.clamp(0, 1) if view.public.pixels else images
        return Reconstruction(images.contiguous(), prepared.diagnostics)


@dataclass
class Chain:
    """The stages from a released tensor back to the picture.

    Stage 0 estimates the picture, stage l the codes of sparse layer l. For each: `mean{l}`, what an attacker knows
    without looking; `trust{l}`, how far the estimate is believed beyond it; and the maps that lead there: `top`,
    `slope{l}` and `shift{l}`, `scale`.
    """

    layers: list[SparseCoding]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    held_error: Tensor | None = None  # left where it was computed

    def __call__(self, z: Tensor) -> Tensor:
        number = len(self.layers)
        estimate = self._believed(Affine.read(self.tensors, "top")(z), number)
        while number > 0:
            number -= 1
            rebuilt = self._rebuilt(estimate, number)
            if number > 0:
                estimate = rebuilt * self.tensors[f"slope{number}"] + self.tensors[f"shift{number}"]
            else:
                estimate = _placed(rebuilt, self.tensors["scale"], self.tensors["scale.range"])
            estimate = self._believed(estimate, number)
        return estimate

    def _rebuilt(self, codes: Tensor, number: int) -> Tensor:
        """The input of layer number + 1 from its codes, in the size of what stage `number` estimates."""
        like = self.tensors[f"mean{number}"]
        return _resized(self.layers[number].reconstruct(codes.clamp_min(0), tuple(like.shape[2:])), like)

    def _believed(self, estimate: Tensor, number: int) -> Tensor:
        mean = self.tensors[f"mean{number}"]
        return mean + self.tensors[f"trust{number}"] * (estimate - mean)

    @classmethod
    def fitted(
        cls,
        layers: list[SparseCoding],
        z: Tensor,
        wanted: list[Tensor],  # pictures, then the codes of each layer
        strength: float,
        held: int,
        *,
        cautious: bool,
    ) -> Chain:
        """Every stage fitted in turn on all pictures but the first `held`, on which its trust is measured.

        Codes are trusted fully unless `cautious`.
        """
        chain = cls(layers)
        tensors, number = chain.tensors, len(layers)
        for stage, target in enumerate(wanted):
            tensors[f"mean{stage}"] = target[held:].mean(0, keepdim=True)
        estimate = fit_affine(z[held:], wanted[number][held:], strength).stored(tensors, "top")(z)
        while True:
            mean = tensors[f"mean{number}"]
            if cautious or number == 0:
                tensors[f"trust{number}"] = _trust(estimate[:held] - mean, wanted[number][:held] - mean)
            else:
                tensors[f"trust{number}"] = mean.new_ones(())
            estimate = chain._believed(estimate, number)
            if number == 0:
                break
            number -= 1
            rebuilt = chain._rebuilt(estimate, number)
            if number > 0:
                estimate = _fit_channels(rebuilt, wanted[number], tensors, number, held)
            else:
                estimate = _fit_pictures(rebuilt, wanted[0], tensors, held)
        chain.held_error = (estimate[:held] - wanted[0][:held]).square().mean()
        return chain


def _trust(estimate: Tensor, truth: Tensor) -> Tensor:
    """γ in [0, 1] with the least ‖γ·estimate − truth‖²; 0 where the estimate is not even finite."""
    agreement, size = widened(estimate * truth).sum(), widened(estimate.square()).sum()
    share = (agreement / size.clamp_min(1e-30)).clamp(0, 1)
    return torch.where(size.isfinite() & agreement.isfinite(), share, 0.0).to(truth)


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
    size = fitting(forward_only(encoder), pictures[:1], most=_CHUNK)
    with _Watch(encoder) as watch:
        for part in pictures.split(size):
            encoder(part)
    return list(watch.codes), [torch.cat(parts) for parts in watch.codes.values()]


def _resized(x: Tensor, like: Tensor) -> Tensor:
    if x.shape[2:] == like.shape[2:]:
        return x
    return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)


def _fit_channels(x: Tensor, target: Tensor, tensors: dict[str, Tensor], number: int, held: int) -> Tensor:
    """The best slope and shift for each channel on all but the first `held`, and what they make of x."""
    axes = (0, 2, 3)
    seen, wanted = x[held:], target[held:]
    x_mean, target_mean = seen.mean(axes, keepdim=True), wanted.mean(axes, keepdim=True)
    spread = (seen - x_mean).square().sum(axes, keepdim=True)
    slope = ((seen - x_mean) * (wanted - target_mean)).sum(axes, keepdim=True) / spread.clamp_min(1e-12)
    tensors[f"slope{number}"], tensors[f"shift{number}"] = slope, target_mean - slope * x_mean
    return x * slope + tensors[f"shift{number}"]


def _statistics(x: Tensor) -> Tensor:
    """What a rebuilt picture says about the scale it lost: N×7."""
    flat = x.flatten(1)
    low, high = torch.quantile(flat, torch.tensor([0.1, 0.9], device=x.device, dtype=x.dtype), dim=1)
    columns = (torch.ones_like(low), flat.mean(1), flat.std(1), flat.amin(1), flat.amax(1), low, high)
    return torch.stack(columns, 1)


def _placed(x: Tensor, scale: Tensor, within: Tensor) -> Tensor:
    """x with the slope and shift its statistics promise, inside the `within` (low, high) of each."""
    slope, shift = (_statistics(x) @ scale).clamp(within[0], within[1]).unbind(1)
    return x * slope.view(-1, 1, 1, 1) + shift.view(-1, 1, 1, 1)


def _fit_pictures(x: Tensor, pictures: Tensor, tensors: dict[str, Tensor], held: int) -> Tensor:
    """Slope and shift of each picture from its statistics, by least squares over pixels of all but the first `held`."""
    flat, truth = widened(x[held:]).flatten(1), widened(pictures[held:]).flatten(1)
    known = widened(_statistics(x[held:]))
    # The error in pixels is quadratic in the 7×2 numbers of `scale`. Slopes fitted picture by picture would be divided
    # by the energy of the rebuilt picture, which is next to nothing where nearly all codes are zero.
    design = torch.stack((flat, torch.ones_like(flat)), 1)  # N×2×D
    gram = torch.einsum("nk,nl,nij->kilj", known, known, design @ design.mT).reshape(14, 14)
    wanted = torch.einsum("nk,ni->ki", known, (design @ truth[:, :, None])[:, :, 0]).reshape(14)
    gram += 1e-9 * gram.diagonal().mean() * torch.eye(14, dtype=gram.dtype, device=gram.device)
    tensors["scale"] = torch.linalg.solve(gram, wanted).view(7, 2).to(x)
    met = _statistics(x[held:]) @ tensors["scale"]
    tensors["scale.range"] = torch.stack((met.amin(0), met.amax(0)))
    return _placed(x, tensors["scale"], tensors["scale.range"])
