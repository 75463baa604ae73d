"""The pseudo-client: an encoder of the attacker's own, made to release what the real one was seen to release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks._release import child
from leakscope.attacks._shadow import Likeness, Shadow, as_places
from leakscope.attacks._sights import Reader
from leakscope.attacks._spectrum import Spectrum
from leakscope.core import progress, seeds
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.devices import widened
from leakscope.core.residence import resident, rows_of
from leakscope.core.results import Diagnostics
from leakscope.core.threat import Access, ThreatModel, View
from leakscope.nn.weights import moved

_STRENGTHS = (1e-2, 1e-1, 1.0, 10.0)
_ALONE = 1.0  # the strength when there is no second shadow to choose it by
_FARTHER = 10.0  # times stronger than what reads another shadow best: the real encoder is farther away than that
_READ = 1000  # public pictures that a decoder is fitted on
_LOOKS = 10  # points of the curve


@ATTACKS.register("pseudo-client")
@dataclass(frozen=True)
class PseudoClient(Attack):
    """Trains encoders of its own until their features of public pictures look like those seen, and decodes with them.

        S = argmin_S d(S(public), seen),   D = argmin_D Σ‖x − D(S(x))‖² over public x,   x̂ = mean over S of D(seen)

    It sends no query and holds no weights: all it has is what victims released, and pictures of its own. d compares
    means at every place, covariances at small distances, and feature vectors under kernels; D is ridge regression.
    `shadows` encoders are trained from different starts. The strength of D is ten times the one that reads the
    features of the *other* shadows best, since the real encoder, too, is not the one that D was fitted on; where
    shadows disagree, their mean falls back to the mean picture. Expect that of vectors, where nothing tells which
    part of a picture a feature comes from. What it rebuilds is proof of a leak; that it rebuilds nothing proves little.

    Xu et al., "A stealthy wolf in sheep's clothing: feature-oriented reconstruction attack (FORA)", CVPR 2024; Zhu et
    al., "Passive inference attacks on split learning via adversarial regularization (SDAR)", NDSS 2025.

    Differs from the papers: a shadow is matched after training is over, with moments and kernels in place of a
    discriminator, and read by ridge regression instead of a deep decoder; the server's layers are not used.
    """

    shadows: int = 2
    steps: int = 120
    batch: int = 32
    learning_rate: float = 1e-2

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES})
    averages_noise: ClassVar[bool] = True  # a shadow learns the noise of the release, and D is fitted on draws of it

    def __post_init__(self) -> None:
        if self.shadows < 1 or self.steps < 0 or self.batch < 2:
            raise ValueError("shadows must be 1 or more, steps 0 or more, batch 2 or more")
        if not self.learning_rate > 0:
            raise ValueError("learning_rate must be positive, such as 0.01")

    def unneeded(self, threat: ThreatModel) -> str | None:
        if Access.QUERY in threat.reach:
            return "it guesses the encoder, which queries or its weights tell for certain"
        return None

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        if seen.features is None:
            raise ValueError("pseudo-client rebuilds observed inputs; it was handed no features")
        every = [seen.features.to(view.device), *([] if seen.repeats is None else seen.repeats.to(view.device))]
        places = as_places(torch.stack(every).mean(0))
        shape = tuple(seen.features.shape[1:])
        curves, readings = [], []
        pictures = view.public.images[:_READ].to(view.device)
        likeness = Likeness(places, child(rng, view.device))
        for _ in range(self.shadows):
            own = child(rng, view.device)
            with seeds.ambient(own.initial_seed(), "shadow"):
                shadow = moved(Shadow(view.image_shape, shape), view.device)
            curves.append(self._match(shadow, likeness, view.public.images, own))
            with torch.no_grad():
                readings.append(torch.cat([shadow(part, own) for part in pictures.split(256)]))
        decoders = [_Decoder(reading, pictures) for reading in readings]
        strength, agreement = _agreed(decoders, readings, pictures)
        images = torch.stack([decoder(likeness.seen, strength) for decoder in decoders]).mean(0)
        if view.public.pixels:
            images = images.clamp(0, 1)
        details = {"strength": strength, "between_shadows": agreement, "shadows": self.shadows, "steps": self.steps}
        curve = tuple(sum(points) / len(points) for points in zip(*curves, strict=True))
        images = images.float().reshape(len(places), *view.image_shape).contiguous()
        return Reconstruction(images, Diagnostics(curve=curve, details=details))

    def _match(self, shadow: Shadow, likeness: Likeness, public: Tensor, rng: torch.Generator) -> list[float]:
        """Train a shadow in place; gives the mean distance over each tenth of the steps."""
        if self.steps == 0:
            return []
        device = likeness.seen.device
        public = resident(public, device)
        optimizer = torch.optim.Adam(shadow.parameters(), self.learning_rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=self.steps + 1)
        losses = []
        with progress.stage("shadow", self.steps) as bar:
            for _ in range(self.steps):
                index = torch.randint(len(public), (self.batch,), generator=rng, device=rng.device)
                loss = likeness(shadow(rows_of(public, index, device), rng))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(shadow.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())
                bar.advance()
        means = [part.mean() for part in torch.stack(losses).tensor_split(min(_LOOKS, self.steps))]
        curve: list[float] = torch.stack(means).tolist()
        return curve


class _Decoder:
    """Ridge regression from a shadow's features of public pictures to the pictures, for any strength."""

    def __init__(self, features: Tensor, pictures: Tensor) -> None:
        self.reader = Reader.of(features)
        self.mean = widened(pictures.flatten(1)).mean(0)
        columns = self.reader.columns(features)
        self.center = columns.mean(0)
        self.z, self.x = columns - self.center, widened(pictures.flatten(1)) - self.mean
        self.spectrum = Spectrum.of(self.z)
        self.level = float(self.spectrum.eigenvalues.mean()) or 1.0  # features that never vary: the mean picture
        self._solved: dict[float, dict[str, Tensor]] = {}

    def __call__(self, features: Tensor, strength: float) -> Tensor:
        """Flat pictures N×P."""
        if strength not in self._solved:
            self._solved[strength] = self.spectrum.solve(self.z, self.x, strength * self.level)
        learnt = {name: widened(tensor) for name, tensor in self._solved[strength].items()}
        z = self.reader.columns(features) - self.center
        moved = z @ learnt["weights"] if "weights" in learnt else (z @ learnt["rows"].T) @ learnt["coefficients"]
        return self.mean + moved


def _agreed(decoders: list[_Decoder], readings: list[Tensor], pictures: Tensor) -> tuple[float, float | None]:
    """The strength for the real encoder, from what reads the features of other shadows best, and the share read."""
    if len(decoders) == 1:
        return _ALONE, None
    truth = widened(pictures.flatten(1))
    errors = {}
    for strength in _STRENGTHS:
        crossed = [
            (decoder(reading, strength) - truth).square().mean()
            for number, decoder in enumerate(decoders)
            for other, reading in enumerate(readings)
            if other != number
        ]
        errors[strength] = float(torch.stack(crossed).mean())
    best = min(errors, key=errors.__getitem__)
    blind = float((truth - truth.mean(0)).square().mean())
    return _FARTHER * best, 1 - errors[best] / blind if blind > 0 else 0.0
