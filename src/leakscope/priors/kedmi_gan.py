"""The inversion-specific GAN of KEDMI: a critic that also knows the target's classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.core.prior import PRIORS, Generator, Material, Prior, PriorState, Scores
from leakscope.core.spec import describe, digest
from leakscope.nn.weights import part, take_over
from leakscope.priors._convolutional import Downward, Upward, recalibrate, settled
from leakscope.priors._game import Batches, Pace, Players, Rules, play
from leakscope.priors._pictures import fitting
from leakscope.priors.dcgan import Dcgan

_CALIBRATED = 2048  # latents behind the statistics of batch normalisation
_CHUNK = 256  # pictures the target scores at once


@PRIORS.register("kedmi-gan")
@dataclass(frozen=True)
class KedmiGan(Prior):
    """A GAN whose critic imitates the target's soft labels, so that generated pictures tell classes apart.

    D gives K logits; lse is their log-sum-exp, and lse > 0 means "real". With T's softmax p(x) on public x:
    L_D = −𝔼Σ_k p_k(x) log softmax_k D(x) + ½[𝔼softplus(−lse D(x)) + 𝔼softplus(lse D(G(z)))],
    L_G = mean_j |𝔼h_j(G(z)) − 𝔼h_j(x)| + `entropy`·Σ_i H(softmax D(G(z_i))), h the features below D's head.
    A picture's implausibility is softplus(−lse D(x)).

    Chen et al., "Knowledge-enriched distributional model inversion attacks", 2021; there 64 kernels of 50
    numbers for minibatch discrimination, width 64, no `base`.

    Differs from the published code: T is in eval mode and its soft labels of the public pictures are computed once;
    the generator starts from `base`, a GAN shared by all targets; averaged weights; after training,
    minibatch discrimination compares with a fixed batch of generated pictures, so that an opinion on
    one picture does not depend on the others.
    """

    # Architecture, and the generator that training starts from.
    base: Annotated[Dcgan, BeforeValidator(PRIORS.build)] = field(default_factory=Dcgan)
    steps: int = 600
    batch: int = 32
    learning_rate: float = 5e-4
    critic_steps: int = 1
    kernels: int = 16  # of minibatch discrimination; 0: none
    kernel_size: int = 8
    entropy: float = 1e-4
    average: float = 0.99

    has_critic: ClassVar[bool] = True
    reads_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 2 or self.critic_steps < 1:
            raise ValueError("steps must be 0 or more, batch 2 or more and critic_steps 1 or more")
        if self.kernels < 0 or self.kernel_size < 1:
            raise ValueError("kernels must be 0 or more and kernel_size 1 or more")
        if self.learning_rate <= 0 or self.entropy < 0 or not 0 <= self.average < 1:
            raise ValueError("learning_rate must be positive, entropy 0 or more and average in [0, 1)")

    @property
    def begins_with(self) -> Prior:
        return self.base

    def require(self, shape: tuple[int, int, int]) -> None:
        self.base.require(shape)

    def learn(self, given: Material) -> PriorState:
        public, device, start = given.public, given.device, given.start
        if given.scores is None:
            raise UsageError("prior kedmi-gan learns from the target's scores; grant scores, or use dcgan")
        images = fitting(self, public)
        soft = _soft_labels(given.scores, images, device)
        seed = given.seed()
        shape, classes = public.shape, soft.shape[1]
        with seeds.ambient(seed, "networks"):
            generator = Upward(shape, self.base.latent, self.base.width)
            critic = LabellingCritic(shape, self.base.width, classes, self.kernels, self.kernel_size)
        if start is not None:
            generator.load_state_dict(part(start.tensors, "network"))
        players = settled(Players(generator, critic), device)
        rules = LabelledGame(images, soft, Batches(images, self.batch, device), self.base.latent, self.entropy)
        pace = Pace(self.steps, self.critic_steps, self.learning_rate, self.average)
        labels = hashlib.sha256(soft.numpy().tobytes()).hexdigest()
        identity = digest([describe(self), public.digest(), seed, labels, start is not None])
        course = play(players, rules, pace, seed=seed, name="kedmi-gan", identity=identity, checkpoint=given.checkpoint)
        z = torch.randn(_CALIBRATED, self.base.latent, generator=seeds.generator(seed, "calibrate")).to(device)
        recalibrate(players.average, z, 256)
        with torch.no_grad():
            critic.compare_with(players.average(z[: self.batch - 1]))
        return PriorState(players.kept(), {"shape": list(shape), "classes": classes, **course.notes()})

    def generator(self, state: PriorState, device: torch.device) -> Generator:
        shape = state.shape
        critic = LabellingCritic(shape, self.base.width, state.notes["classes"], self.kernels, self.kernel_size)
        critic.reference = torch.empty_like(state.tensors["critic.reference"])
        network = KedmiGenerator(shape, self.base.latent, Upward(shape, self.base.latent, self.base.width), critic)
        take_over(network, state.tensors, device)
        return settled(network, device).eval().requires_grad_(False)


class KedmiGenerator(Generator):
    """Averaged generator and last critic."""

    def __init__(self, shape: tuple[int, int, int], latent: int, network: Upward, critic: LabellingCritic) -> None:
        super().__init__()
        self.shape, self.latent, self.network, self.critic = shape, latent, network, critic

    def decode(self, z: Tensor) -> Tensor:
        images: Tensor = self.network(z).contiguous()
        return images

    def implausibility(self, images: Tensor) -> Tensor:
        _, logits = self.critic(images)
        return F.softplus(-logits.logsumexp(1))


class LabellingCritic(nn.Module):
    """Features h of pictures and K logits, with minibatch discrimination between the two.

    o_i = Σ_{j≠i} exp(−‖M_i − M_j‖₁) for each kernel, M = hW: near copies in a batch give themselves away
    (Salimans et al., 2016). In eval mode j runs over `reference`.
    """

    reference: Tensor

    def __init__(self, shape: tuple[int, int, int], width: int, classes: int, kernels: int, size: int) -> None:
        super().__init__()
        self.body = Downward(shape, width, normalized=True)
        self.kernels, self.size = kernels, size
        self.compare = nn.Parameter(torch.randn(self.body.features, kernels * size) / self.body.features**0.5)
        self.head = nn.Linear(self.body.features + kernels, classes)
        self.register_buffer("reference", torch.zeros(0, kernels, size))

    def _compared(self, features: Tensor) -> Tensor:
        return (features @ self.compare).view(-1, self.kernels, self.size)

    def compare_with(self, images: Tensor) -> None:
        """Fix the pictures that eval mode compares with."""
        self.reference = self._compared(self.body(images)).detach()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h: Tensor = self.body(images)
        own = self._compared(h)
        others = own if self.training else self.reference
        near = torch.exp(-(own[:, None] - others[None]).abs().sum(3)).sum(1)
        near = near - 1 if self.training else near  # a picture is at no distance from itself
        logits: Tensor = self.head(torch.cat([h, near], 1))
        return h, logits


class LabelledGame(Rules):
    """The losses in `KedmiGan`'s docstring."""

    def __init__(self, images: Tensor, soft: Tensor, batches: Batches, latent: int, entropy: float) -> None:
        self.images, self.soft, self.batches = images, soft, batches
        self.latent, self.entropy = latent, entropy

    def critic_loss(self, players: Players, step: int, rng: torch.Generator) -> Tensor:
        index = torch.randint(len(self.images), (self.batches.size,), generator=rng, device=rng.device).cpu()
        labelled, soft = self.images[index].to(self.batches.device), self.soft[index].to(self.batches.device)
        _, given = players.critic(labelled)
        _, real = players.critic(self.batches.draw(rng))
        _, fake = players.critic(players.fake(self.batches.size, self.latent, rng))
        imitation: Tensor = -(soft * given.log_softmax(1)).sum(1).mean()
        real_or_not: Tensor = F.softplus(-real.logsumexp(1)).mean() + F.softplus(fake.logsumexp(1)).mean()
        return imitation + real_or_not / 2

    def generator_loss(self, players: Players, step: int, rng: torch.Generator) -> Tensor:
        h_fake, logits = players.critic(players.fake(self.batches.size, self.latent, rng))
        h_real, _ = players.critic(self.batches.draw(rng))
        matching: Tensor = (h_fake.mean(0) - h_real.mean(0)).abs().mean()
        logs: Tensor = logits.log_softmax(1)
        return matching - self.entropy * (logs.exp() * logs).sum()


@torch.no_grad()
def _soft_labels(scores: Scores, images: Tensor, device: torch.device) -> Tensor:
    return torch.cat([scores(part.to(device)).softmax(1).float().cpu() for part in images.split(_CHUNK)])
