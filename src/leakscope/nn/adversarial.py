"""The two sides of an adversarial game, and what keeps the critic smooth.

D is a critic's score of a picture, x a public picture, x̂ a generated one.

    wgan-gp    L_D = 𝔼D(x̂) − 𝔼D(x) + λ𝔼(‖∇D(x̃)‖₂ − 1)²,  x̃ = x + α(x̂ − x), α ~ U(0, 1) for each picture
    hinge      L_D = 𝔼max(0, 1 − D(x)) + 𝔼max(0, 1 + D(x̂)) + λ𝔼‖∇D(x)‖²
    logistic   L_D = 𝔼softplus(−D(x)) + 𝔼softplus(D(x̂)) + λ𝔼‖∇D(x)‖²

Gulrajani et al. (2017); Lim & Ye (2017) and Miyato et al. (2018); Goodfellow et al. (2014) with the
penalty of Mescheder et al. (2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Score = Callable[[Tensor], Tensor]  # N×C×H×W to N
Penalty = Callable[[Score, Tensor, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Loss:
    """What the critic and the generator minimise, given scores of public and of generated pictures."""

    critic: Callable[[Tensor, Tensor], Tensor]
    generator: Callable[[Tensor], Tensor]  # N scores to N losses
    penalty: Penalty


def _gradient(critic: Score, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_(True)
    gradient: Tensor = torch.autograd.grad(critic(x).sum(), x, create_graph=True)[0]
    return gradient.flatten(1)


def gradient_penalty(critic: Score, real: Tensor, fake: Tensor, rng: torch.Generator) -> Tensor:
    """𝔼(‖∇D(x̃)‖₂ − 1)² between public and generated pictures."""
    share = torch.rand(len(real), 1, 1, 1, generator=rng, device=rng.device).to(real.device)
    norms: Tensor = torch.linalg.vector_norm(_gradient(critic, torch.lerp(real, fake, share)), dim=1)
    return (norms - 1).square().mean()


def zero_centred_penalty(critic: Score, real: Tensor, fake: Tensor, rng: torch.Generator) -> Tensor:
    """𝔼‖∇D(x)‖² at public pictures: where they are, an honest critic is flat at the end of the game."""
    del fake, rng
    return _gradient(critic, real).square().sum(1).mean()


LOSSES: dict[str, Loss] = {
    "wgan-gp": Loss(
        critic=lambda real, fake: fake.mean() - real.mean(),
        generator=lambda fake: -fake,
        penalty=gradient_penalty,
    ),
    "hinge": Loss(
        critic=lambda real, fake: F.relu(1 - real).mean() + F.relu(1 + fake).mean(),
        generator=lambda fake: -fake,
        penalty=zero_centred_penalty,
    ),
    "logistic": Loss(
        critic=lambda real, fake: F.softplus(-real).mean() + F.softplus(fake).mean(),
        generator=lambda fake: F.softplus(-fake),
        penalty=zero_centred_penalty,
    ),
}
