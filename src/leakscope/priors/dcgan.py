"""The convolutional GAN that most class attacks search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.prior import PRIORS, Generator, PriorState
from leakscope.core.spec import LATER
from leakscope.nn.adversarial import LOSSES
from leakscope.nn.precision import Precision
from leakscope.nn.weights import take_over
from leakscope.priors._adversarial import AdversarialPrior
from leakscope.priors._convolutional import Critic, Upward, recalibrate, settled
from leakscope.priors._game import Pace

_CALIBRATED = 2048  # latents behind the statistics of batch normalisation


@PRIORS.register("dcgan")
@dataclass(frozen=True)
class Dcgan(AdversarialPrior):
    """A transposed-convolution generator and a strided-convolution critic, trained against each other.

    The equations of each `loss` are in `nn.adversarial`. Weights are averaged over the steps, θ̄ ← βθ̄ + (1 − β)θ,
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
    precision: Precision = field(default="float32", metadata=LATER)  # of training, where the device has it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_steps < 1:
            raise ValueError("critic_steps must be 1 or more")

    def network(self, shape: tuple[int, int, int]) -> Upward:
        return Upward(shape, self.latent, self.width)

    def critic(self, shape: tuple[int, int, int]) -> Critic:
        # The published critic of WGAN-GP is normalised, which a penalty on single pictures allows.
        return Critic(shape, self.width, normalized=self.loss == "wgan-gp")

    @property
    def pace(self) -> Pace:
        return Pace(self.steps, self.critic_steps, self.learning_rate, self.average, precision=self.precision)

    def finish(self, network: nn.Module, seed: int) -> None:
        z = torch.randn(_CALIBRATED, self.latent, generator=seeds.generator(seed, "calibrate"))
        recalibrate(network, z.to(next(network.parameters()).device), 256)

    def generator(self, state: PriorState, device: torch.device) -> Generator:
        network = ConvolutionalGenerator(
            state.shape, self.network(state.shape), self.critic(state.shape), self.loss, self.latent
        )
        take_over(network, state.tensors, device)
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

    @property
    def blocks(self) -> int:
        return self.network.blocks

    def hidden(self, w: Tensor, block: int, changes: Mapping[int, Tensor]) -> Tensor:
        return self.network.hidden(w[:, 0], block, changes)

    def from_hidden(self, w: Tensor, changes: Mapping[int, Tensor]) -> Tensor:
        return self.network.finished(self.network.hidden(w[:, 0], self.blocks - 1, changes), changes).contiguous()

    def implausibility(self, images: Tensor) -> Tensor:
        return self._loss.generator(self.critic(images))
