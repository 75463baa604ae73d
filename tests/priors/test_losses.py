"""Adversarial losses by hand, and penalties against their closed form on a linear critic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakscope.core.seeds import generator
from leakscope.nn.adversarial import LOSSES, gradient_penalty, zero_centred_penalty

REAL, FAKE = torch.tensor([2.0, 0.5]), torch.tensor([-3.0, 0.0])


@pytest.mark.parametrize(
    ("name", "critic", "made"),
    [
        ("wgan-gp", -1.5 - 1.25, [3.0, 0.0]),
        ("hinge", 0.25 + 0.5, [3.0, 0.0]),
        # ln(1 + e^−2) = 0.126928, ln(1 + e^−½) = 0.474077; ln(1 + e^−3) = 0.048587, ln 2 = 0.693147
        ("logistic", (0.126928 + 0.474077 + 0.048587 + 0.693147) / 2, [3.048587, 0.693147]),
    ],
)
def test_losses_by_hand(name: str, critic: float, made: list[float]) -> None:
    loss = LOSSES[name]
    torch.testing.assert_close(loss.critic(REAL, FAKE), torch.tensor(critic), atol=1e-5, rtol=0)
    torch.testing.assert_close(loss.generator(FAKE), torch.tensor(made), atol=1e-5, rtol=0)


def test_penalties_of_a_linear_critic() -> None:
    a = torch.randn(1, 2, 4, 4, generator=generator(0, "a"), requires_grad=True)

    def critic(x: Tensor) -> Tensor:
        return (a * x).sum((1, 2, 3))

    rng = generator(0, "points")
    real, fake = torch.rand(5, 2, 4, 4, generator=rng), torch.rand(5, 2, 4, 4, generator=rng)
    norm = a.detach().norm()
    penalty = gradient_penalty(critic, real, fake, rng)
    torch.testing.assert_close(penalty.detach(), (norm - 1) ** 2)
    # The critic learns from it: ∂(‖a‖ − 1)²/∂a = 2(‖a‖ − 1)a/‖a‖.
    penalty.backward()
    torch.testing.assert_close(a.grad, 2 * (norm - 1) * a.detach() / norm)
    torch.testing.assert_close(zero_centred_penalty(critic, real, fake, rng).detach(), norm**2)


def test_the_gradient_is_taken_between_a_picture_and_its_rival() -> None:
    seen: list[Tensor] = []

    def critic(x: Tensor) -> Tensor:
        seen.append(x.detach())
        return x.square().sum((1, 2, 3))

    real, fake = torch.zeros(64, 1, 2, 2), torch.ones(64, 1, 2, 2)
    penalty = gradient_penalty(critic, real, fake, generator(0, "share"))
    (x,) = seen
    share = x[:, 0, 0, 0]
    assert torch.equal(x, share.view(-1, 1, 1, 1).expand_as(x)), "one share for each picture"
    assert 0 < share.min() < 0.2
    assert 0.8 < share.max() < 1
    # ∇Σx² = 2x, so ‖∇‖ = 2·2·share for four pixels.
    torch.testing.assert_close(penalty.detach(), (4 * share - 1).square().mean())
