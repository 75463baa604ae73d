"""The adversarial decoder: its pictures must also pass for real ones, and send the features that were seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks._decoder_training import Course, Network, Objective, apply, learn
from leakscope.attacks._decoders import Capacity
from leakscope.attacks._expectation import ReleaseModel, learn_release
from leakscope.attacks._release import PublicReleases, channel_statistics, child
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.model import SplitModel
from leakscope.core.spec import LATER
from leakscope.core.threat import Access, View
from leakscope.nn.adversarial import LOSSES
from leakscope.nn.precision import Precision
from leakscope.nn.weights import moved

_SMALLEST = 8  # pixels a side: below, there is no texture to judge
_PROBES = 128  # pictures from which the release is learnt
_DRAWS = 4
_GAME = LOSSES["logistic"]


@ATTACKS.register("decoder-gan")
@dataclass(frozen=True)
class DecoderGAN(Attack):
    """Trains a decoder against a discriminator, and for pictures whose features are those that were seen.

        D:  min  −mean[ log D(x) + log(1 − D(G(z))) ]
        G:  min  −mean log D(G(z)) + ξ ‖x − G(z)‖₁ + ξ′ ‖z − h(G(z))‖₁     over public x, z = release(h(x))

    in turn, one step each; ξ is `pixel_weight` and ξ′ `feature_weight`, both norms are means over elements, and
    features count in units of their channel's standard deviation. The decoder with the least ‖x − G(z)‖₁ on
    the attacker's own validation slice is kept.

    The attack of "MixCon: adjusting the separability of data representations for harder data recovery", 2020,
    appendix D.2 (ξ = ξ′ = 10); Goodfellow et al., "Generative adversarial nets", 2014.

    Differs from the paper: it writes one sum for both players; G minimises −log D(G(z)) here, which has a
    gradient while D is sure. h is followed by what its release is expected to be, so that a gain or a
    rounding is no inconsistency, and features withheld at random are left out. Scale-free features, AdamW on one
    cycle of the rate and early stopping, as `decoder` has them.
    """

    front: Literal["auto", "conv", "dense", "residual"] = "auto"
    capacity: Capacity = "medium"
    pixel_weight: float = 10.0
    feature_weight: float = 10.0
    steps: int = 400
    batch: int = 16
    learning_rate: float = 5e-3
    judge_rate: float = 2e-3  # of the discriminator
    validation: float = 0.1
    patience: int = 4
    precision: Precision = field(default="float32", metadata=LATER)  # of training, where the device has it

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.QUERY, Access.ENCODER})
    averages_noise: ClassVar[bool] = True
    # The encoder's gradient is a regulariser here: losing to the plain decoder is no sign of a masked one.
    white_box: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._course()
        if not self.pixel_weight > 0 or not self.feature_weight >= 0:
            raise ValueError("pixel_weight must be positive and feature_weight 0 or more; published are 10 and 10")
        if not self.judge_rate > 0:
            raise ValueError("judge_rate must be positive, such as 0.002")

    def _course(self) -> Course:
        return Course(
            self.steps, self.batch, self.learning_rate, 1e-4, self.validation, self.patience, self.precision
        )  # fmt: skip

    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        if min(image_shape[1:]) < _SMALLEST:
            height, width = image_shape[1:]
            return f"judges pictures of at least {_SMALLEST}×{_SMALLEST} pixels, not {height}×{width}; use decoder"
        return None

    def prepare(self, view: View, rng: torch.Generator) -> Prepared:
        encoder = view.encoder

        def contest(releases: PublicReleases, ours: Tensor) -> Objective:
            with torch.no_grad():
                clean = encoder(releases.images(ours[:_PROBES]))
            release = learn_release(view.defense, clean, _DRAWS, child(rng, view.device))
            _, deviation = channel_statistics(clean)
            seed = int(torch.randint(2**31, (1,), generator=rng, device=rng.device))
            with seeds.ambient(seed, "discriminator"):
                discriminator = moved(Discriminator(view.image_shape[0]), view.device)
            return _Contest(self, encoder, release, deviation, discriminator)

        return learn(view, Network(self.front, self.capacity), self._course(), F.l1_loss, contest, rng)

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        return apply(view, Network(self.front, self.capacity), prepared, seen, "decoder-gan")


class Discriminator(nn.Sequential):
    """Three strided convolutions, then one logit for each patch they overlook."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__(
            nn.Conv2d(channels, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 1, 1),
        )


class _Contest:
    """One step of the discriminator, then the loss of the decoder against it."""

    def __init__(
        self,
        attack: DecoderGAN,
        encoder: nn.Module,
        release: ReleaseModel,
        deviation: Tensor,
        discriminator: Discriminator,
    ) -> None:
        self.attack, self.encoder, self.release, self.deviation = attack, encoder, release, deviation
        self.discriminator = discriminator
        self.optimizer = torch.optim.Adam(discriminator.parameters(), attack.judge_rate, betas=(0.5, 0.999))

    def __call__(self, guess: Tensor, x: Tensor, z: Tensor) -> Tensor:
        self.discriminator.requires_grad_(True)
        real, fake = self.discriminator(torch.cat((x, guess.detach()))).chunk(2)
        self.optimizer.zero_grad()
        _GAME.critic(real, fake).backward()
        self.optimizer.step()

        self.discriminator.requires_grad_(False)
        loss = _GAME.generator(self.discriminator(guess)).mean()
        loss = loss + self.attack.pixel_weight * F.l1_loss(guess, x)
        if self.attack.feature_weight:
            loss = loss + self.attack.feature_weight * self.inconsistency(guess, z)
        return loss

    def inconsistency(self, guess: Tensor, z: Tensor) -> Tensor:
        """mean |z − release(h(guess))|, over features that were not withheld, in standard deviations."""
        rows = torch.arange(len(z), device=z.device)
        expected = self.release.expected(self.encoder(guess), rows, len(z))
        informative = self.release.informative(z)
        error = informative * (z - expected).abs() / self.deviation
        return error.sum() / informative.sum().clamp_min(1)
