"""A search inside a generator: its styles first, then its hidden maps block by block, held in an ℓ1 ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._expectation import ReleaseModel, learn_release
from leakscope.attacks._linear import Linear, fit
from leakscope.attacks._release import child
from leakscope.attacks._sights import Reader
from leakscope.attacks.peeling.lbfgs import minimise
from leakscope.core import progress
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.devices import brought
from leakscope.core.model import SplitModel
from leakscope.core.prior import PRIORS, Generator, Prior
from leakscope.core.results import Diagnostics
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View

_PROBES = 32  # pictures on which a release is studied
_TRIED = 16  # public pictures on which weight and depth are chosen
_CHUNK = 64  # pictures searched at once
_WEIGHTS = (1e-3, 1e-2, 1e-1)  # of the prior of styles
_RADII = (0.2, 0.6)  # of the ℓ1 ball, as shares of the hidden map's own ℓ1 norm
_RATE = 0.02  # of Adam on a hidden map, in units of its deviation
_HELPS = 0.98  # a deeper block must bring the validation error down to this share
_CROWDED = 4  # pixels per released feature below which other attacks do better


@ATTACKS.register("latent", revision=2)
@dataclass(frozen=True)
class Latent(Attack):
    """Finds the picture of a learned prior that explains the features; for late cuts, which tell few numbers.

        1. Styles w of `candidates` random latents and their releases; ridge from release to style is an encoder.
           Each victim starts from its encoded style or from the nearest candidate, whichever explains it better.
        2. min_w ‖E[release(encoder(G(w)))] − z‖²/Var(z) + λ‖(w − w̄)/s‖²/dim w, by L-BFGS, one w per layer
        3. block by block: min_h ‖E[release(encoder(G_b(h)))] − z‖²  with ‖h − h₀‖₁ ≤ ρ‖h₀‖₁, h₀ from the block before

    λ, ρ and the number of blocks are those that rebuild pictures of the attacker's own best.

    Li et al., "GAN you see me? Enhanced data reconstruction attacks against split inference" (GLASS), 2023; Qiu et
    al., "A closer look at GAN priors: exploiting intermediate features for enhanced model inversion attacks"
    (IF-GMI), 2024.

    Differs from the papers: the encoder is a ridge regression, styles are searched by L-BFGS and not by Adam, radii
    are relative to the hidden map and chosen by validation, and the generators are small ones trained on public data.
    """

    prior: Prior = nested(PRIORS, "style")
    candidates: int = 1000
    steps: int = 150
    block_steps: int = 60

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.ENCODER})
    white_box: ClassVar[bool] = True
    averages_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.candidates < 2 or min(self.steps, self.block_steps) < 0:
            raise ValueError("candidates must be 2 or more, steps and block_steps 0 or more")

    def redundant(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        channels, height, width = image_shape
        device = next((p.device for p in split.parameters()), torch.device("cpu"))
        with torch.no_grad():
            features = split.encode(torch.zeros(1, *image_shape, device=device))[0].numel()
        if _CROWDED * features <= channels * height * width:
            return None
        pixels = channels * height * width
        return f"{features} features for {pixels} pixels: a prior adds little, and other attacks do better"

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        generator = view.prior(self.prior)
        model = _studied(view, rng)
        radii = _RADII if generator.blocks and self.block_steps else ()
        chunks = -(-self.candidates // _CHUNK)
        with progress.stage("latent: candidates and settings", chunks + 1 + len(radii)) as bar:
            released = []
            with torch.no_grad():
                styles = generator.to_style(generator.sample(self.candidates, rng))
                for w in styles.split(_CHUNK):
                    released.append(_release(view, model, generator.from_style(w)))
                    bar.advance()
            known = torch.cat(released)
            reader = Reader.of(known)
            encoder = fit(reader.columns(known), styles, 1, child(rng, view.device)).linear
            search = _Search(view, generator, model, styles, known, reader, encoder)
            truth = view.public.images[:_TRIED].to(view.device)
            z = _asked(view, truth, rng)

            def errors(guesses: list[Tensor]) -> list[float]:
                found: list[float] = torch.stack([(images - truth).square().mean() for images in guesses]).tolist()
                return found

            # All weights in one search: every picture once with each of them.
            weights = torch.tensor(_WEIGHTS, device=view.device).repeat_interleave(len(z))
            found, curve = search.styles(z.repeat(len(_WEIGHTS), *(1 for _ in z.shape[1:])), weights, self.steps)
            tried = found.split(len(z))
            reached = errors([generator.from_style(w) for w in tried])
            bar.advance()
            chosen = min(range(len(reached)), key=reached.__getitem__)
            w, weight = tried[chosen], _WEIGHTS[chosen]
            best, depth, radius = reached[chosen], 0, _RADII[0]
            for candidate in radii:
                reached = errors(search.blocks(z, w, generator.blocks, candidate, self.block_steps))
                least = min(range(len(reached)), key=reached.__getitem__)
                if reached[least] < _HELPS * best:
                    best, depth, radius = reached[least], least + 1, candidate
                bar.advance()
        tensors = {"styles": styles, "released": known, **{f"encoder.{k}": v for k, v in encoder.tensors.items()}}
        tensors |= {"center": reader.center, "scale": reader.scale}
        tensors["chosen"] = torch.tensor([weight, float(depth), radius], dtype=torch.float64)
        diagnostics = Diagnostics(curve=tuple(curve), details={"weight": weight, "blocks": depth, "radius": radius})
        return Prepared({name: tensor.contiguous() for name, tensor in tensors.items()}, diagnostics)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        if seen.features is None:
            raise ValueError("latent rebuilds observed inputs; it was handed no features")
        tensors = {name: brought(tensor, view.device) for name, tensor in prepared.tensors.items()}
        weight, depth, radius = prepared.tensors["chosen"].tolist()
        generator, model = view.prior(self.prior), _studied(view, rng)
        encoder = Linear({n.removeprefix("encoder."): t for n, t in tensors.items() if n.startswith("encoder.")})
        reader = Reader(tensors["center"], tensors["scale"])
        search = _Search(view, generator, model, tensors["styles"], tensors["released"], reader, encoder)
        features = seen.features.to(view.device)
        if seen.repeats is not None and model.additive:
            features = torch.cat((features[None], seen.repeats.to(view.device))).mean(0)
        images: list[Tensor] = []
        curve: list[float] = []
        with progress.stage("latent", len(features)) as bar:
            for z in features.split(_CHUNK):
                w, found = search.styles(z, torch.full((len(z),), weight, device=z.device), self.steps)
                guess = generator.from_style(w) if depth == 0 else None
                images.append(search.blocks(z, w, int(depth), radius, self.block_steps)[-1] if guess is None else guess)
                curve = curve or found
                bar.advance(len(z))
        found_images = torch.cat(images).detach().clamp(0, 1).float()
        details = prepared.diagnostics.details
        return Reconstruction(found_images.contiguous(), Diagnostics(curve=tuple(curve), details=details))


def _studied(view: View, rng: torch.Generator) -> ReleaseModel:
    with torch.no_grad():
        clean = view.encoder(view.public.images[:_PROBES].to(view.device))
    return learn_release(view.defense, clean, 8, rng)


@torch.no_grad()
def _asked(view: View, images: Tensor, rng: torch.Generator) -> Tensor:
    """What is released for the attacker's own pictures: by the target's word if it may be asked."""
    if Access.QUERY in view and view.budget.left >= len(images):
        return view.query(images)
    return view.defense.release(view.encoder(images), child(rng, view.device))


def _release(view: View, model: ReleaseModel, images: Tensor) -> Tensor:
    rows = torch.arange(len(images), device=images.device)
    return model.expected(view.encoder(images), rows, len(images))


@dataclass(frozen=True)
class _Search:
    """What all victims share: the generator, how releases follow from pictures, and where searches may begin."""

    view: View
    generator: Generator
    model: ReleaseModel
    candidates: Tensor  # n×style
    released: Tensor  # their releases, as expected
    reader: Reader
    encoder: Linear  # from what the reader makes of a release to a style

    def misfit(self, images: Tensor, z: Tensor, rows: Tensor, count: int) -> Tensor:
        """Mean squared gap of features per picture, in units of their variance among candidates."""
        expected = self.model.expected(self.view.encoder(images), rows, count)
        gap = ((expected - z) * self.model.informative(z)).flatten(1)
        return gap.square().mean(1) / self.released.var().clamp_min(1e-12)

    @torch.no_grad()
    def start(self, z: Tensor) -> Tensor:
        flat, known = z.flatten(1), self.released.flatten(1)
        nearest = self.candidates[torch.cdist(flat, known).argmin(1)]
        encoded = self.encoder(self.reader.columns(z)).to(nearest)
        low, high = self.candidates.amin(0), self.candidates.amax(0)
        starts = torch.stack((nearest, torch.maximum(torch.minimum(encoded, high), low)))
        rows = torch.arange(len(z), device=z.device)
        misfits = torch.stack([self.misfit(self.generator.from_style(w), z, rows, len(z)) for w in starts])
        return starts[misfits.argmin(0), rows]

    def styles(self, z: Tensor, weights: Tensor, steps: int) -> tuple[Tensor, list[float]]:
        """Styles N×layers×style that explain z, with a weight for each picture, and the mean objective by step."""
        mean, spread = self.candidates.mean(0), self.candidates.std(0).clamp_min(1e-6)
        layers, style = self.generator.layers, self.generator.style
        start = (self.start(z) - mean) / spread

        def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            u = x.detach().view(len(x), layers, style).requires_grad_()
            with torch.enable_grad():
                fit = self.misfit(self.generator.from_style(mean + spread * u), z[rows], rows, len(z))
                value = fit + weights[rows] * u.square().mean((1, 2))
                (gradient,) = torch.autograd.grad(value.sum(), u)
            return value.detach(), gradient.flatten(1)

        found = minimise(objective, start[:, None].expand(-1, layers, -1).flatten(1), iterations=steps)
        return mean + spread * found.x.view(len(z), layers, style), found.curve

    def blocks(self, z: Tensor, w: Tensor, depth: int, radius: float, steps: int) -> list[Tensor]:
        """Pictures after the search of 1, 2, … `depth` hidden maps; each starts from what the one before reached."""
        rows, images = torch.arange(len(z), device=z.device), []
        changes: dict[int, Tensor] = {}
        for block in range(depth):
            with torch.no_grad():
                begin = self.generator.hidden(w, block, changes)
            limit = radius * begin.flatten(1).abs().sum(1)
            unit = begin.flatten(1).std(1).clamp_min(1e-6).view(-1, 1, 1, 1)
            change = torch.zeros_like(begin).requires_grad_()
            adam = torch.optim.Adam([change], _RATE)
            for _ in range(steps):
                with torch.enable_grad():
                    guess = self.generator.from_hidden(w, {**changes, block: unit * change})
                    loss = self.misfit(guess, z, rows, len(z)).sum()
                    (change.grad,) = torch.autograd.grad(loss, change)
                adam.step()
                with torch.no_grad():
                    change.copy_(within_ball((unit * change).flatten(1), limit).view_as(change) / unit)
            changes[block] = (unit * change).detach()
            with torch.no_grad():
                images.append(self.generator.from_hidden(w, changes))
        return images


def within_ball(rows: Tensor, radius: Tensor) -> Tensor:
    """Every row's nearest point of ℓ1 norm at most `radius`.

    Duchi et al., "Efficient projections onto the ℓ1-ball for learning in high dimensions", 2008.
    """
    size = rows.abs()
    ordered = size.sort(1, descending=True).values
    places = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    excess = (ordered.cumsum(1) - radius[:, None]) / places
    count = (ordered > excess).sum(1, keepdim=True).clamp_min(1)
    threshold = excess.gather(1, count - 1).clamp_min(0)
    inside = size.sum(1, keepdim=True) <= radius[:, None]
    return torch.where(inside, rows, rows.sign() * (size - threshold).clamp_min(0))
