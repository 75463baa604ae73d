"""Search on encoders whose answer is known, and against releases that hide gradients or add noise."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks._expectation import learn_release
from leakscope.attacks.search import DISTANCES, PRESETS, Search, _total_variation
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed, Reconstruction
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.core.spec import describe
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import CLASSES, image_set, small_split, small_view, smooth_images

CPU = torch.device("cpu")


class TestSearch(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return Search(steps=40)


class TestSearchByAdam(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return Search("l1", "adam", steps=150, learning_rate=0.05, tv=0.0)


class Release(Defense):
    """A release given as a function of features and generator."""

    def __init__(self, function) -> None:  # type: ignore[no-untyped-def]
        self.function = function

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        out: Tensor = self.function(z, rng)
        return out


NOISE = Release(lambda z, rng: z + 0.1 * torch.randn(z.shape, generator=rng))
ROUND = Release(lambda z, rng: (10 * z).round() / 10)
SIGN = Release(lambda z, rng: z.sign())
DROP = Release(lambda z, rng: z * (torch.rand(z.shape, generator=rng) > 0.5))
SCALED_NOISE = Release(lambda z, rng: z * (1 + 0.1 * torch.randn(z.shape, generator=rng)) + 0.05)
CLAMP = Release(lambda z, rng: z.clamp(-1, 1))


def attacked(attack: Search, defense: Defense | None, *, count: int = 8) -> tuple[Reconstruction, float]:
    """The reconstruction, and its squared error as a share of the mean picture's."""
    truth, view = smooth_images(count, "searched"), small_view(Search.needs, defense=defense)
    with torch.no_grad():
        seen = Observed(features=small_split(defense).release(truth, seeds.generator(0, "v")))
    result = attack.reconstruct(view, attack.prepare(view, seeds.generator(0, "p")), seen, seeds.generator(0, "r"))
    floor = (view.public.images.mean(0) - truth).square().mean()
    return result, float((result.images - truth).square().mean() / floor)


def test_an_invertible_linear_encoder_is_inverted_exactly() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3, padding=1)
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 64, 2))

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.conv(x))
            return scores

    with seeds.ambient(0, "wide"):
        target = SplitModel(Wide(), "conv").eval()
    truth = torch.rand(5, 1, 8, 8, generator=seeds.generator(0, "t"))
    owned = ImageSet(torch.rand(20, 1, 8, 8, generator=seeds.generator(0, "o")), torch.zeros(20).long(), ("a", "b"))
    threat = ThreatModel(Search.needs, public_data=False)
    view = grant(target, threat, owned, seeds.generator(0, "q"), classes=2, device=CPU)
    attack = Search(tv=0.0)
    with torch.no_grad():
        seen = Observed(features=target.encode(truth))
    result = attack.reconstruct(view, attack.prepare(view, seeds.generator(0, "p")), seen, seeds.generator(0, "r"))
    torch.testing.assert_close(result.images, truth, atol=1e-3, rtol=0)
    assert result.diagnostics.curve[-1] < 1e-6 * result.diagnostics.curve[0]


def test_rounding_is_broken_and_its_missing_gradient_reported() -> None:
    result, error = attacked(Search(steps=60), ROUND)
    assert result.diagnostics.zero_gradient == 1.0
    assert error < 0.2
    undefended, _ = attacked(Search(steps=5), None)
    assert undefended.diagnostics.zero_gradient == 0.0


def test_signs_alone_give_a_picture_away() -> None:
    _, error = attacked(Search(steps=60), SIGN)
    assert error < 0.8


def test_noise_weighs_the_prior() -> None:
    """The weight worked out from the noise beats both none and far too much."""
    errors = [attacked(Search(steps=60, tv=tv), NOISE)[1] for tv in (None, 0.0, 100.0)]
    assert errors[0] < errors[1]
    assert errors[0] < errors[2]


@pytest.mark.parametrize("defense", [DROP, SCALED_NOISE, CLAMP], ids=["drop", "scaled-noise", "clamp"])
def test_other_releases_are_searched_through(defense: Defense) -> None:
    result, error = attacked(Search(steps=60), defense)
    assert error < 0.35
    assert result.diagnostics.diverged == 0


@pytest.mark.parametrize(
    ("defense", "expected"),
    [
        (NOISE, lambda z: z),
        (DROP, lambda z: z),
        (Release(lambda z, rng: 2 * z * (torch.rand(z.shape, generator=rng) > 0.5)), lambda z: 2 * z),
        (Release(lambda z, rng: z), lambda z: z),
        (CLAMP, lambda z: z.clamp(-1, 1)),
    ],
    ids=["noise", "drop", "rescaled-drop", "none", "clamp"],
)
def test_the_expected_release_is_known_in_closed_form(defense: Defense, expected) -> None:  # type: ignore[no-untyped-def]
    clean = torch.randn(16, 4, 5, 5, generator=seeds.generator(0, "clean"))
    model = learn_release(defense, clean, 4, seeds.generator(0, "rng"))
    rows = torch.tensor([3, 1])
    torch.testing.assert_close(model.expected(clean[rows], rows, 16), expected(clean[rows]), atol=1e-5, rtol=1e-4)
    assert model.noise == pytest.approx(0.01 if defense is NOISE else 0, abs=1e-3)
    assert model.withholds == bool((defense.release(clean, seeds.generator(0, "x")) == 0).any())


def test_a_sampled_expectation_meets_each_row_with_the_same_noise() -> None:
    clean = torch.randn(6, 4, 5, 5, generator=seeds.generator(0, "clean"))
    model = learn_release(SCALED_NOISE, clean, 16, seeds.generator(0, "rng"))
    whole = model.expected(clean, torch.arange(6), 6)
    rows = torch.tensor([4, 2])
    torch.testing.assert_close(model.expected(clean[rows], rows, 6), whole[rows])
    assert float((whole - clean - 0.05).abs().mean()) < 0.1 * float(clean.abs().mean()) / 2


def test_nothing_that_is_not_finite_is_ever_returned() -> None:
    truth, view = smooth_images(4, "broken"), small_view(Search.needs)
    with torch.no_grad():
        features = small_split().encode(truth)
    features[1] = float("nan")
    seen, rng = Observed(features=features), seeds.generator(0, "r")
    wild = Search("l1", "sgd", steps=5, learning_rate=1e9, tv=0.0)
    for attack in (Search(steps=10), Search("mse", "adam", steps=10), wild):
        result = attack.reconstruct(view, attack.prepare(view, rng), seen, rng)
        assert result.images.isfinite().all()
        assert result.diagnostics.diverged == 0.25
        torch.testing.assert_close(result.images[1], view.public.images.mean(0))


class Constant(nn.Module):
    """Features that no pixel moves, with a gradient of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 2, 1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2 * 16 * 16, CLASSES))
        nn.init.zeros_(self.features.weight)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))
        return scores


@pytest.mark.parametrize("toward", ["zero", "mean"])
def test_weight_decay_shrinks_geometrically_toward_its_centre(toward: Literal["zero", "mean"]) -> None:
    """Where the features say nothing, x ← x − lr·2·norm·(x − c): x_t − c = (x_0 − c)(1 − 2·lr·norm)^t."""
    with seeds.ambient(0, "constant"):
        split = SplitModel(Constant(), "features").eval()
    view = small_view(Search.needs, split=split)
    with torch.no_grad():
        seen = Observed(features=split.encode(smooth_images(2, "any")))
    attack = Search("l2", "sgd", steps=7, learning_rate=10.0, tv=0.0, norm=5e-3, toward=toward)
    rng = seeds.generator(0, "r")
    found = attack.reconstruct(view, attack.prepare(view, rng), seen, rng).images
    first = view.public.images.mean(0)
    shrunk = first * (1 - 2 * 10 * 5e-3) ** 7 if toward == "zero" else first
    torch.testing.assert_close(found, shrunk.expand_as(found))


def test_what_came_later_leaves_older_keys_alone() -> None:
    assert "toward" not in describe(Search())
    assert describe(PRESETS["mixcon"])["toward"] == "zero"


def test_restarts_keep_the_best_objective() -> None:
    once, _ = attacked(Search(steps=8), None)
    thrice, _ = attacked(Search(steps=8, restarts=3), None)
    assert once.diagnostics.objective is not None
    assert thrice.diagnostics.objective is not None
    assert thrice.diagnostics.objective <= once.diagnostics.objective


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_descend(name: str) -> None:
    from dataclasses import replace

    result, _ = attacked(replace(PRESETS[name], steps=30), None, count=2)
    assert result.images.isfinite().all()
    assert result.diagnostics.curve[-1] < result.diagnostics.curve[0]


def test_distances_and_priors_in_closed_form() -> None:
    gap, seen = torch.tensor([[3.0, -4.0]]), torch.tensor([[6.0, 8.0]])
    assert {name: round(float(of(gap, seen)), 4) for name, of in DISTANCES.items()} == {
        "normalised": 0.25,
        "mse": 12.5,
        "l1": 7.0,
        "l2": 5.0,
    }
    image = torch.zeros(1, 1, 3, 3)
    image[0, 0, 1, 1] = 1.0
    # Up and left of the point one difference each; at the point both are −1.
    assert float(_total_variation(image, 2.0)) == pytest.approx(4.0)
    assert float(_total_variation(image, 1.0)) == pytest.approx(2 + 2**0.5, abs=1e-4)


def test_points_that_are_not_pictures_are_not_clamped() -> None:
    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(5, 12))
            self.head = nn.Linear(12, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.body(x))
            return scores

    with seeds.ambient(0, "points"):
        target = SplitModel(Points(), "body").eval()
    rng = seeds.generator(0, "points")
    points, labels = 3 * torch.randn(50, 5, 1, 1, generator=rng), torch.arange(50) % 3
    public = ImageSet(points, labels, image_set(1, "x").classes, pixels=False)
    truth = 3 * torch.randn(4, 5, 1, 1, generator=rng)
    view: View = grant(target, ThreatModel(frozenset({Access.ENCODER})), public, rng, classes=3, device=CPU)
    with torch.no_grad():
        seen = Observed(features=target.encode(truth))
    result = Search().reconstruct(view, Search().prepare(view, rng), seen, rng)
    torch.testing.assert_close(result.images, truth, atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [{"steps": -1}, {"learning_rate": 0.0}, {"tv": -1.0}, {"norm_power": 0.5}, {"distance": "l1"}, {"restarts": 0}],
)
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Search(**fields)  # type: ignore[arg-type]
