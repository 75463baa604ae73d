"""What priors that a generator and a critic play out share: settings, training, and what is kept of it."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import ClassVar

from torch import nn

from leakscope.core import seeds
from leakscope.core.prior import Material, Prior, PriorState
from leakscope.core.spec import describe, digest
from leakscope.nn.adversarial import LOSSES
from leakscope.nn.precision import Precision
from leakscope.priors._convolutional import Critic, ladder, settled
from leakscope.priors._duel import Duel
from leakscope.priors._game import Batches, Pace, Players, play
from leakscope.priors._opening import imitate_components
from leakscope.priors._pictures import fitting, require_size


class AdversarialPrior(Prior):
    """A generator and a critic trained against each other by the equations of `loss`, in `nn.adversarial`.

    Weights of the generator are averaged over the steps, θ̄ ← βθ̄ + (1 − β)θ, and the average is kept. The
    penalty is taken every `penalty_every`-th critic step and weighted up by as much.
    """

    has_critic: ClassVar[bool] = True

    loss: str
    width: int
    latent: int
    size: int | None
    steps: int
    batch: int
    learning_rate: float
    penalty: float
    penalty_every: int
    average: float
    opening: int
    precision: Precision

    def __post_init__(self) -> None:
        if min(self.width, self.latent, self.penalty_every) < 1:
            raise ValueError("width, latent and penalty_every must be 1 or more")
        if self.steps < 0 or self.opening < 0 or self.batch < 2:
            raise ValueError("steps and opening must be 0 or more and batch 2 or more")
        if self.learning_rate <= 0 or self.penalty < 0 or not 0 <= self.average < 1:
            raise ValueError("learning_rate must be positive, penalty 0 or more and average in [0, 1)")

    @abstractmethod
    def network(self, shape: tuple[int, int, int]) -> nn.Module:
        """The generator's network, untrained."""

    @abstractmethod
    def critic(self, shape: tuple[int, int, int]) -> Critic:
        """Its opponent, untrained."""

    @property
    def pace(self) -> Pace:
        return Pace(self.steps, 1, self.learning_rate, self.average, precision=self.precision)

    @abstractmethod
    def finish(self, network: nn.Module, seed: int) -> None:
        """Statistics of the averaged network that the average of weights does not give."""

    def require(self, shape: tuple[int, int, int]) -> None:
        ladder(shape)
        require_size(self.kind_name, self.size, shape)

    def learn(self, given: Material) -> PriorState:
        public, device = given.public, given.device
        images, seed = fitting(self, public), given.seed()
        with seeds.ambient(seed, "networks"):
            players = Players(self.network(public.shape), self.critic(public.shape))
        players = settled(players, device)
        batches = Batches(images, self.batch, device)
        rules = Duel(LOSSES[self.loss], batches, self.latent, self.penalty, self.penalty_every)
        identity = digest([describe(self), public.digest(), seed])
        opening = partial(
            imitate_components, players, images,
            latent=self.latent, steps=self.opening, batch=self.batch, seed=seed,
        )  # fmt: skip
        course = play(
            players, rules, self.pace,
            seed=seed, name=self.kind_name, identity=identity, checkpoint=given.checkpoint, opening=opening,
        )  # fmt: skip
        self.finish(players.average, seed)
        return PriorState(players.kept(), {"shape": list(public.shape), **course.notes()})
