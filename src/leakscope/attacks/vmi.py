"""Variational inversion: for every class, a distribution of latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._class_search import ClassAttack, Course, classes_of, rebuild
from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks._flows import Flows, divergence
from leakscope.attacks._identity_losses import cross_entropy
from leakscope.attacks._white_box import WhiteBox
from leakscope.core.attack import ATTACKS, Observed, Prepared, Reconstruction
from leakscope.core.prior import PRIORS, Generator, Prior
from leakscope.core.spec import nested
from leakscope.core.threat import Access, View

_MOMENTUM = 0.9
_CHUNK = 128  # pictures drawn at once at the end

#: Base noise, classes×N×latent → pictures (class-major) and the objective of each class.
Objective = Callable[[Tensor], tuple[Tensor, Tensor]]


@ATTACKS.register("vmi")
@dataclass(frozen=True)
class Vmi(ClassAttack):
    """Fits a flow of latents per class: likely to the target, and no further from the prior than that takes.

    min_q E_{z~q}[CE(T(G(z)), y)] + `divergence`·KL(q ‖ N(0, I))

    q is one normalising flow for each style layer (`_flows`), all fed the same noise; each latent passes the
    mapping network, and its w is used at that layer; the KL is averaged over layers. SGD with momentum;
    the pictures are `images` draws of the last q.

    Wang et al., "Variational model inversion attacks", 2021. The default, 320 steps, is what defence papers
    run (BiDO's fork, hence TL-DMI); the original takes about 4870 steps of 64 (`PRESETS`). Say which.

    Differs from the published code: the last epoch, not the one an evaluation network likes best; on
    1×1 "pictures" half of the coordinates leave after each of Glow's levels.
    """

    prior: Prior = nested(PRIORS, "style")
    images: int = 100
    steps: int = 320
    batch: int = 32
    learning_rate: float = 1e-4
    divergence: float = 1e-3
    couplings: int = 10  # a level
    levels: int = 3
    hidden: int = 100  # width of the networks in the couplings

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.HEAD})
    white_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or min(self.images, self.batch, self.couplings, self.levels, self.hidden) < 1:
            raise ValueError("steps must be 0 or more; images, batch, couplings, levels and hidden 1 or more")
        if self.learning_rate <= 0 or self.divergence < 0:
            raise ValueError("learning_rate must be positive and divergence 0 or more")

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        target, seed = WhiteBox(view, rng), seed_from(rng)
        generator = view.prior(self.prior)
        return rebuild(
            self.kind_name,
            classes_of(seen, view, self.kind_name),
            per_class=self.images,
            rows=self.batch,
            steps=self.steps,
            search=lambda chunk, course: self._fit(
                generator, target, chunk, ClassDraws(seed, "flows", chunk, view.device), course
            ),
        )

    def _fit(
        self, generator: Generator, target: WhiteBox, classes: Tensor, draws: ClassDraws, course: Course
    ) -> tuple[Tensor, Tensor]:
        layers, latent = generator.layers, generator.latent
        wanted = Flows.drawn(latent, couplings=self.couplings, levels=self.levels, hidden=self.hidden)
        draws.ahead(1, *((layers, *shape) for shape in wanted))
        flows = Flows(
            latent, couplings=self.couplings, levels=self.levels, hidden=self.hidden,
            normal=lambda *shape: draws.normal(layers, *shape).flatten(0, 1),
        )  # fmt: skip
        trained = [tensor.requires_grad_() for tensor in flows.trained]
        sgd = torch.optim.SGD(trained, self.learning_rate, momentum=_MOMENTUM)

        def objective(noise: Tensor) -> tuple[Tensor, Tensor]:
            """Pictures (classes·N) of base noise, and the objective of each class."""
            shared = noise.repeat_interleave(layers, 0)
            z, volume = flows(shared)
            distance = divergence(shared, z, volume).view(-1, layers).mean(1)
            styles = generator.to_style(z.to(noise).flatten(0, 1)).view(len(classes), layers, noise.shape[1], -1)
            pictures = generator.from_style(styles.transpose(1, 2).flatten(0, 1))
            labels = classes.repeat_interleave(noise.shape[1])
            miss = cross_entropy(target.scores(pictures), labels).view(len(classes), -1).mean(1)
            return pictures, miss.to(distance) + self.divergence * distance

        draws.ahead(self.steps, (self.batch, latent))
        for _ in range(self.steps):
            with torch.enable_grad():
                _, value = objective(draws.normal(self.batch, latent))
                gradients = torch.autograd.grad(value.sum(), trained)
            course.step(value.detach())
            for tensor, gradient in zip(trained, gradients, strict=True):
                tensor.grad = torch.where(gradient.isfinite(), gradient, 0.0)
            sgd.step()
        return self._draws(objective, draws.normal(self.images, latent))

    @torch.no_grad()
    def _draws(self, objective: Objective, noise: Tensor) -> tuple[Tensor, Tensor]:
        parts = [objective(part) for part in noise.split(max(1, _CHUNK // len(noise)), 1)]
        images = torch.cat([pictures.unflatten(0, (len(noise), -1)) for pictures, _ in parts], 1)
        return images.flatten(0, 1), torch.stack([value for _, value in parts]).mean(0)


#: 320 steps of 32 pictures, and the original's 31 epochs of 157 steps of 64.
PRESETS: dict[str, dict[str, int]] = {"vmi-320": {"steps": 320, "batch": 32}, "vmi-full": {"steps": 4867, "batch": 64}}
