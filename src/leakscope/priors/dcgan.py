"""The convolutional GAN that most class attacks search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.prior import PRIORS, Generator, Prior, PriorState, Scores
from leakscope.core.spec import describe, digest
from leakscope.priors._convolutional import Critic, Upward, ladder, recalibrate, settled
from leakscope.priors._duel import Duel
from leakscope.priors._game import Batches, Pace, Players, play
from leakscope.priors._losses import LOSSES
from leakscope.priors._opening import imitate_components
from leakscope.priors._pictures import fitting, require_size

_CALIBRATED = 2048  # latents behind the statistics of batch normalisation


@PRIORS.register("dcgan")
@dataclass(frozen=True)
class Dcgan(Prior):
    """A transposed-convolution generator and a strided-convolution critic, trained against each other.

    The equations of each `loss` are in `_losses`. Weights are averaged over the steps, θ̄ ← βθ̄ + (1 − β)θ,
    and the average is what is kept. The penalty is taken every `penalty_every`-th critic step and
    weighted up by as much.

    Radford et al., "Unsupervised representation learning with DCGAN", 2016; as the prior of GMI: Zhang
    et al., "The Secret Revealer", 2020, whose settings are loss=wgan-gp, width=64, latent=100,
    critic_steps=5, penalty=10, penalty_every=1, learning_rate=2e-4, 120 epochs.

    Differs from the papers: 4×4 kernels (5×5 there), averaged weights with recomputed batch
    statistics, `opening` steps of imitating the principal components before the game, and a default loss
    and size for minutes on one core.
    """

    loss: Literal["hinge", "logistic", "wgan-gp"] = "hinge"
    width: int = 24
    latent: int = 64
    size: int | None = None  # of the pictures; None: that of the public ones
    steps: int = 1200
    batch: int = 32
    learning_rate: float = 5e-4
    critic_steps: int = 1
    penalty: float = 0.5
    penalty_every: int = 8
    average: float = 0.995
    opening: int = 300  # steps of imitating the principal components first; 0: none

    has_critic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.width, self.latent, self.critic_steps, self.penalty_every) < 1:
            raise ValueError("width, latent, critic_steps and penalty_every must be 1 or more")
        if self.steps < 0 or self.opening < 0 or self.batch < 2:
            raise ValueError("steps and opening must be 0 or more and batch 2 or more")
        if self.learning_rate <= 0 or self.penalty < 0 or not 0 <= self.average < 1:
            raise ValueError("learning_rate must be positive, penalty 0 or more and average in [0, 1)")

    def require(self, shape: tuple[int, int, int]) -> None:
        ladder(shape)
        require_size(self.kind_name, self.size, shape)

    def fit(
        self,
        public: ImageSet,
        rng: torch.Generator,
        *,
        device: torch.device,
        checkpoint: Path | None = None,
        scores: Scores | None = None,
        start: PriorState | None = None,
    ) -> PriorState:
        del scores, start
        images = fitting(self, public)
        seed = int(torch.randint(2**31, (1,), generator=rng, device=rng.device))
        with seeds.ambient(seed, "networks"):
            players = Players(Upward(public.shape, self.latent, self.width), self._critic(public.shape))
        players = settled(players, device)
        rules = Duel(
            LOSSES[self.loss], Batches(images, self.batch, device), self.latent, self.penalty, self.penalty_every
        )
        pace = Pace(self.steps, self.critic_steps, self.learning_rate, self.average)
        identity = digest([describe(self), public.digest(), seed])
        opening = partial(
            imitate_components, players, images,
            latent=self.latent, steps=self.opening, batch=self.batch, seed=seed,
        )  # fmt: skip
        course = play(
            players, rules, pace,
            seed=seed, name="dcgan", identity=identity, checkpoint=checkpoint, opening=opening,
        )  # fmt: skip
        z = torch.randn(_CALIBRATED, self.latent, generator=seeds.generator(seed, "calibrate")).to(device)
        recalibrate(players.average, z, 256)
        tensors = {
            f"{part}.{name}": tensor.contiguous()
            for part, network in (("network", players.average), ("critic", players.critic))
            for name, tensor in network.state_dict().items()
        }
        return PriorState(tensors, {"shape": list(public.shape), **course.notes()})

    def _critic(self, shape: tuple[int, int, int]) -> Critic:
        # The published critic of WGAN-GP is normalised, which a penalty on single pictures allows.
        return Critic(shape, self.width, normalized=self.loss == "wgan-gp")

    def generator(self, state: PriorState, device: torch.device) -> Generator:
        network = ConvolutionalGenerator(
            state.shape, Upward(state.shape, self.latent, self.width), self._critic(state.shape), self.loss, self.latent
        )
        network.load_state_dict(state.tensors)
        return settled(network, device).eval().requires_grad_(False)


class ConvolutionalGenerator(Generator):
    """Averaged generator and last critic."""

    def __init__(self, shape: tuple[int, int, int], network: Upward, critic: Critic, loss: str, latent: int) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent
        self.network, self.critic, self._loss = network, critic, LOSSES[loss]

    def decode(self, z: Tensor) -> Tensor:
        images: Tensor = self.network(z).contiguous()
        return images

    def implausibility(self, images: Tensor) -> Tensor:
        return self._loss.generator(self.critic(images))
