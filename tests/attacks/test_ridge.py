"""Ridge against closed forms, scikit-learn and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor, nn

from leakscope.attacks._spectrum import Spectrum
from leakscope.attacks.ridge import Ridge
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import small_split, small_view, smooth_images

CPU = torch.device("cpu")


class TestRidge(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return Ridge()


class OneLayer(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.layer = layer
        self.head = nn.Linear(layer.out_features, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(self.flat(x)))
        return scores


class Noise(Defense):
    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return z + 0.3 * torch.randn(z.shape, generator=rng)


def linear_view(matrix: Tensor, public: Tensor, access: frozenset[Access] = Ridge.needs) -> View:
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
    layer.weight.data = matrix.float()
    target = SplitModel(OneLayer(layer), "layer").eval()
    owned = ImageSet(public, torch.zeros(len(public), dtype=torch.int64), ("a", "b"))
    return grant(target, ThreatModel(access), owned, seeds.generator(0, "q"), classes=2, device=CPU)


@settings(max_examples=15)
@given(side=st.integers(2, 4), extra=st.integers(0, 40))
def test_an_orthogonal_encoder_is_inverted_exactly(side: int, extra: int) -> None:
    rng = seeds.generator(side, "orthogonal", extra)
    pixels = side * side
    matrix, _ = torch.linalg.qr(torch.randn(pixels, pixels, generator=rng))
    public, unseen = torch.rand(2 * pixels + 2 + extra, 1, side, side, generator=rng), torch.rand(5, 1, side, side)
    view = linear_view(matrix, public)
    attack = Ridge()
    prepared = attack.prepare(view, rng)
    guess = attack.reconstruct(view, prepared, Observed(features=unseen.flatten(1) @ matrix.T), rng).images
    torch.testing.assert_close(guess, unseen, rtol=0, atol=1e-4)


@pytest.mark.parametrize("features", [6, 60])
def test_weights_are_those_of_scikit_learn(features: int) -> None:
    """Primal with few features, dual with many."""
    rng = seeds.generator(0, "sklearn")
    z = torch.randn(30, features, generator=rng, dtype=torch.float64)
    x = torch.randn(30, 4, generator=rng, dtype=torch.float64)
    centred, targets = z - z.mean(0), x - x.mean(0)
    fit = Spectrum.of(centred)
    assert fit.dual == (features == 60)
    expected = SklearnRidge(alpha=0.7).fit(z.numpy(), x.numpy())
    np.testing.assert_allclose(fit.solve(centred, targets, 0.7)["weights"].numpy().T, expected.coef_, atol=1e-6)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("features", [5, 40])
@pytest.mark.parametrize("strength", [0.5, 1e-9])
def test_left_out_error_is_that_of_refitting(draws: int, features: int, strength: float) -> None:
    """Brute force: leave each picture out, with all its draws, and refit; also where a fit goes through every row."""
    rng = seeds.generator(0, "left-out")
    pictures = 10
    x = torch.randn(pictures, 3, generator=rng, dtype=torch.float64).repeat_interleave(draws, 0)
    z = torch.randn(pictures * draws, features, generator=rng, dtype=torch.float64)
    errors = []
    for picture in range(pictures):
        out = torch.zeros(len(z), dtype=torch.bool)
        out[picture * draws : (picture + 1) * draws] = True
        model = SklearnRidge(alpha=strength).fit(z[~out].numpy(), x[~out].numpy())
        errors.append(((model.predict(z[out].numpy()) - x[out].numpy()) ** 2).sum(1))
    (fast,) = Spectrum.of(z - z.mean(0)).left_out_errors(x - x.mean(0), [strength], draws)
    assert fast == pytest.approx(float(np.concatenate(errors).mean()), rel=1e-8 if strength > 1e-3 else 1e-4)


def test_the_strength_of_least_left_out_error_is_chosen() -> None:
    """Few samples and noise: neither end of the grid may win, and more noise calls for more shrinkage."""
    view = small_view(Ridge.needs, defense=Noise())
    noisy = Ridge().prepare(view, seeds.generator(0, "p"))
    clean = Ridge().prepare(small_view(Ridge.needs), seeds.generator(0, "p"))
    assert clean.diagnostics.details["strength"] < noisy.diagnostics.details["strength"] < 10
    assert noisy.diagnostics.details["draws"] == 4
    assert clean.diagnostics.details["draws"] == 1
    assert view.budget.spent == 8 + 160 + 1 + 4 * 160  # a second look, all once, one for the shape, the draws


def test_more_draws_do_not_hurt() -> None:
    truth = smooth_images(64, "more-draws")
    with torch.no_grad():
        seen = Observed(features=small_split(Noise()).release(truth, seeds.generator(0, "v")))
    errors = []
    for draws in (1, 8):
        view = small_view(Ridge.needs, defense=Noise())
        attack = Ridge(draws=draws)
        guess = attack.reconstruct(view, attack.prepare(view, seeds.generator(0, "p")), seen, seeds.generator(0, "r"))
        errors.append(float((guess.images - truth).square().mean()))
    assert errors[1] < errors[0]


def test_large_weights_stay_in_two_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = TestRidge().seen(Ridge())
    images = []
    for limit in (2**26, 0):
        monkeypatch.setattr("leakscope.attacks._spectrum._WEIGHT_ELEMENTS", limit)
        view = small_view(Ridge.needs, public=60)
        prepared = Ridge().prepare(view, seeds.generator(0, "p"))
        assert ("coefficients" in prepared.tensors) == (limit == 0)
        images.append(Ridge().reconstruct(view, prepared, seen, seeds.generator(0, "r")).images)
    torch.testing.assert_close(images[0], images[1], atol=1e-4, rtol=0)


def test_an_attacker_who_does_not_know_the_defence_still_trains_on_what_is_released() -> None:
    """It holds the encoder, but what it is sent does not agree with it: it must ask."""

    class Negate(Defense):
        def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
            return 1 - z

    from leakscope.testing.synthetic import image_set

    truth, target = smooth_images(8, "obscure"), small_split(Negate())
    threat = ThreatModel(Ridge.needs | {Access.ENCODER}, knows_defense=False)
    view = grant(target, threat, image_set(160, "public"), seeds.generator(0, "q"), classes=3, device=CPU)
    attack = Ridge()
    with torch.no_grad():
        seen = Observed(features=target.release(truth))
    prepared = attack.prepare(view, seeds.generator(0, "p"))
    guess = attack.reconstruct(view, prepared, seen, seeds.generator(0, "r")).images
    assert view.budget.spent > 160
    assert (guess - truth).square().mean() < 0.2 * (view.public.images.mean(0) - truth).square().mean()


@pytest.mark.parametrize("fields", [{"strengths": ()}, {"strengths": (0.0,)}, {"draws": 0}, {"largest": 1}])
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Ridge(**fields)  # type: ignore[arg-type]


def test_features_that_never_vary_give_the_mean_picture() -> None:
    """A collapsed target (MixCon with β = 0 turns every unit off) tells nothing, and says so in finite numbers."""
    public = torch.rand(30, 1, 3, 3, generator=seeds.generator(0, "x"))
    view = linear_view(torch.zeros(4, 9), public)
    prepared = Ridge().prepare(view, seeds.generator(0, "p"))
    guess = Ridge().reconstruct(view, prepared, Observed(features=torch.zeros(2, 4)), seeds.generator(0, "r"))
    assert np.isfinite(prepared.diagnostics.details["left_out_mse"])
    torch.testing.assert_close(guess.images, public.mean(0).expand(2, -1, -1, -1))
