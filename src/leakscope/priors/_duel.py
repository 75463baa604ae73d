"""Public pictures against generated ones, under one of the losses."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.nn.adversarial import Loss
from leakscope.nn.precision import exactly
from leakscope.priors._game import Batches, Players, Rules


class Duel(Rules):
    """The penalty is taken every `every`-th step and weighted up by as much."""

    def __init__(self, loss: Loss, batches: Batches, latent: int, penalty: float, every: int) -> None:
        self.loss, self.batches, self.latent = loss, batches, latent
        self.penalty, self.every = penalty, every

    def critic_loss(self, players: Players, step: int, rng: torch.Generator) -> Tensor:
        real, fake = self.batches.draw(rng), players.fake(self.batches.size, self.latent, rng)
        loss = self.loss.critic(players.critic(real).float(), players.critic(fake).float())
        if self.penalty and step % self.every == 0:
            with exactly(real.device):
                penalty = self.loss.penalty(players.critic, real, fake.float(), rng)
            loss = loss + self.penalty * self.every * penalty
        return loss

    def generator_loss(self, players: Players, step: int, rng: torch.Generator) -> Tensor:
        fake = players.fake(self.batches.size, self.latent, rng)
        return self.loss.generator(players.critic(fake).float()).mean()
