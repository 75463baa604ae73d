"""The inversion-specific GAN: its losses by hand, its critic against a loop over pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.prior import PriorState
from leakscope.core.seeds import generator
from leakscope.priors._game import Batches, Players
from leakscope.priors.dcgan import Dcgan
from leakscope.priors.kedmi_gan import KedmiGan, KedmiGenerator, LabelledGame, LabellingCritic
from leakscope.testing.synthetic import CPU, image_set

LOGITS = torch.tensor([[0.0, 1.0, 2.0], [-1.0, -2.0, 0.0]])


class _Fixed(nn.Module):
    """A critic that has made up its mind."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.flatten(1), self.logits.expand(len(images), -1) if len(self.logits) == 1 else self.logits


def test_implausibility_is_the_published_prior_term() -> None:
    made = KedmiGenerator((1, 16, 16), 3, nn.Identity(), _Fixed(LOGITS))  # type: ignore[arg-type]
    torch.testing.assert_close(
        made.implausibility(torch.zeros(2, 1, 1, 1)).mean(), torch.tensor(0.29809), atol=1e-5, rtol=0
    )


def test_losses_by_hand() -> None:
    images = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    logits = torch.tensor([[0.0, 1.0]])
    soft = torch.tensor([[0.25, 0.75], [0.25, 0.75]])
    linear = nn.Linear(3, 4)
    nn.init.zeros_(linear.weight)
    nn.init.constant_(linear.bias, 0.5)
    half = nn.Sequential(nn.Flatten(), linear, nn.Unflatten(1, (1, 2, 2)))
    game = LabelledGame(images, soft, Batches(images, 8, CPU), 3, entropy=0.1)
    assert game.batches.size == 2
    players = Players(half, _Fixed(logits))
    # softmax = (0.268941, 0.731059), lse = ln(1 + e) = 1.313262
    imitation = 0.25 * 1.313262 + 0.75 * 0.313262
    real_or_not = 0.5 * (0.238183 + 1.551445)  # softplus(∓1.313262)
    loss = game.critic_loss(players, 0, generator(0, "a"))
    torch.testing.assert_close(loss, torch.tensor(imitation + real_or_not), atol=1e-4, rtol=0)

    mean = float(game.batches.draw(_after_latents(generator(0, "b"))).mean())
    entropy = 2 * (0.268941 * 1.313262 + 0.731059 * 0.313262)  # summed over a batch of two
    loss = game.generator_loss(players, 0, generator(0, "b"))
    torch.testing.assert_close(loss.detach(), torch.tensor(abs(0.5 - mean) + 0.1 * entropy), atol=1e-4, rtol=0)


def _after_latents(rng: torch.Generator) -> torch.Generator:
    torch.randn(2, 3, generator=rng)
    return rng


def test_minibatch_discrimination_against_all_pairs() -> None:
    with seeds.ambient(0, "critic"):
        critic = LabellingCritic((1, 16, 16), 2, 5, kernels=3, size=2)
        x, reference = torch.rand(4, 1, 16, 16), torch.rand(3, 1, 16, 16)
    for others in (None, reference):
        if others is not None:
            critic.compare_with(others)
            critic.eval()
        h, logits = critic(x)
        own, rival = (critic.body(part) @ critic.compare for part in (x, x if others is None else others))
        near = torch.zeros(4, 3)
        for i in range(4):
            for j in range(len(rival)):
                if others is None and i == j:
                    continue
                for kernel in range(3):
                    at = slice(2 * kernel, 2 * kernel + 2)
                    near[i, kernel] += torch.exp(-(own[i, at] - rival[j, at]).abs().sum())
        torch.testing.assert_close(logits, critic.head(torch.cat([h, near], 1)), atol=1e-5, rtol=1e-4)


def test_it_starts_from_the_shared_gan_and_learns_the_targets_labels() -> None:
    base = Dcgan(width=4, latent=6, steps=3, batch=4, opening=0)
    prior = KedmiGan(base=base, steps=0, batch=8)
    public = image_set(24, "public")
    start = base.fit(public, generator(0, "base"), device=CPU)
    assert prior.begins_with == base

    def scores(x: Tensor) -> Tensor:  # a target that tells bright tops from bright bottoms
        top, bottom = x[:, 0, :8].mean((1, 2)), x[:, 0, 8:].mean((1, 2))
        return 60 * torch.stack([top, bottom], 1)

    def fit(prior: KedmiGan, start: PriorState | None) -> PriorState:
        return prior.fit(public, generator(0, "fit"), device=CPU, scores=scores, start=start)

    weight = "network.rise.0.weight"
    assert torch.equal(fit(prior, start).tensors[weight], start.tensors[weight])
    assert not torch.equal(fit(prior, None).tensors[weight], start.tensors[weight])

    trained = KedmiGan(base=base, steps=30, batch=8, learning_rate=4e-3)
    made = trained.generator(fit(trained, start), CPU)
    assert isinstance(made, KedmiGenerator)
    truth = scores(public.images).argmax(1)
    agreement = (made.critic(public.images)[1].argmax(1) == truth).float().mean()
    assert 0.3 < truth.float().mean() < 0.7
    assert agreement > 0.85
