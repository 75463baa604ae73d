"""The adversarial decoder: its two losses by hand, what its terms do, and its positive control."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks._expectation import learn_release
from leakscope.attacks.decoder import TrainedDecoder
from leakscope.attacks.decoder_gan import DecoderGAN, Discriminator, _Contest
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.defense import Defense
from leakscope.core.threat import ThreatModel, grant
from leakscope.experiments import stand_ins as controls
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import CPU, SHAPE, small_split, smooth_images

ONE = torch.ones(())


class TestDecoderGAN(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return DecoderGAN(capacity="small", steps=60, learning_rate=1e-2)


def _contest(encoder: nn.Module, defense: Defense | None = None, **fields: Any) -> _Contest:
    clean = encoder(smooth_images(32, "probes"))
    release = learn_release(defense or Defense(), clean, 2, seeds.generator(0, "release"))
    with seeds.ambient(0, "discriminator"):
        discriminator = Discriminator(SHAPE[0])
    return _Contest(DecoderGAN(**fields), encoder, release, ONE, discriminator)


def test_the_losses_are_those_of_the_paper() -> None:
    """A discriminator that says ½ everywhere, and an encoder that sends the picture doubled."""

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    contest = _contest(Twice(), judge_rate=1e-30)
    for p in contest.discriminator.parameters():
        nn.init.zeros_(p)
    x, guess = smooth_images(4, "x"), smooth_images(4, "guess")
    pixels = float((x - guess).abs().mean())
    assert float(contest(guess, x, 2 * x)) == pytest.approx(math.log(2) + 10 * pixels + 10 * 2 * pixels, rel=1e-5)
    contest = _contest(Twice(), judge_rate=1e-30, pixel_weight=3.0, feature_weight=0.0)
    for p in contest.discriminator.parameters():
        nn.init.zeros_(p)
    assert float(contest(guess, x, 2 * x)) == pytest.approx(math.log(2) + 3 * pixels, rel=1e-5)


def test_the_discriminator_learns_and_only_from_its_own_step() -> None:
    contest = _contest(nn.Identity(), feature_weight=0.0)
    x = smooth_images(16, "x")
    guess = torch.full_like(x, 0.5).requires_grad_()
    for _ in range(30):
        loss = contest(guess, x, x)
    before = [p.clone() for p in contest.discriminator.parameters()]
    loss.backward()
    assert all(torch.equal(p, q) for p, q in zip(contest.discriminator.parameters(), before, strict=True))
    assert guess.grad is not None
    with torch.no_grad():
        assert contest.discriminator(x).mean() > contest.discriminator(guess).mean() + 1


class Withheld(Defense):
    """Sends a quarter of the features, twice as large."""

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return 2 * z * (torch.rand(z.shape, generator=rng) < 0.25)


def test_a_release_is_no_inconsistency() -> None:
    """What a gain changes and chance withholds is not held against the true picture."""
    contest = _contest(nn.Identity(), Withheld())
    x = smooth_images(4, "x")
    z = Withheld().release(x, seeds.generator(1, "seen"))
    assert float(contest.inconsistency(x, z)) == pytest.approx(0, abs=1e-5)
    assert float(contest.inconsistency(x + 0.1, z)) == pytest.approx(0.2, rel=1e-3)


def test_the_feature_term_alone_finds_pictures_that_send_what_was_seen() -> None:
    x, encoder = smooth_images(8, "victims"), small_split().encode
    with torch.no_grad():
        z = encoder(x)
    errors = {}
    for weight in (0.0, 10.0):
        contest = _contest(_Encoder(), pixel_weight=1e-9, feature_weight=weight)
        guess = torch.full_like(x, 0.5).requires_grad_()
        optimizer = torch.optim.Adam([guess], 0.02)
        for _ in range(40):
            optimizer.zero_grad()
            contest(guess, x, z).backward()
            optimizer.step()
        with torch.no_grad():
            errors[weight] = float((encoder(guess) - z).abs().mean())
    assert errors[10.0] < 0.3 * errors[0.0]


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = small_split().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.split.encode(x)


@pytest.mark.parametrize(
    "attack",
    [DecoderGAN(capacity="small", steps=100), TrainedDecoder(capacity="small", loss="random-conv", steps=100)],
    ids=["decoder-gan", "random-conv"],
)
def test_positive_control(attack: Attack) -> None:
    """They invert an encoder that sends the picture itself."""
    shape = (1, 16, 16)
    public, victims = controls.easy_pictures(300, shape, "public"), controls.easy_pictures(16, shape, "victims")
    target = controls.identity_control((4, 8, 8), 2)
    view = grant(target, ThreatModel(attack.needs), public, seeds.generator(0, "q"), classes=2, device=CPU)
    prepared = attack.prepare(view, seeds.generator(0, "p"))
    with torch.no_grad():
        seen = Observed(features=target.encode(victims.images))
    guess = attack.reconstruct(view, prepared, seen, seeds.generator(0, "r")).images
    missed = (guess - victims.images).square().sum() / (public.images.mean(0) - victims.images).square().sum()
    assert float(1 - missed) >= controls.POSITIVE_LEAK


def test_points_are_not_pictures_to_judge() -> None:
    split = small_split()
    assert DecoderGAN().unsuited(split, (1, 28, 28)) is None
    reason = DecoderGAN().unsuited(split, (10, 1, 1))
    assert reason is not None
    assert "use decoder" in reason


@pytest.mark.parametrize(
    "fields", [{"pixel_weight": 0.0}, {"feature_weight": -1.0}, {"judge_rate": 0.0}, {"steps": -1}, {"batch": 0}]
)
def test_impossible_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DecoderGAN(**fields)
