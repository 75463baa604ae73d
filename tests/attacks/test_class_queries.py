"""Attacks that ask: boundary repulsion where the geometry is known, the genetic search, and their budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import beta, binom
from torch import Tensor, nn

from leakscope.attacks._draws import ClassDraws, seed_from
from leakscope.attacks.brepmi import Walk
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Observed, Reconstruction
from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.prior import PRIORS
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.nn.style_space import from_p, style_bounds, to_p
from leakscope.testing.synthetic import CPU, smooth_images

LATENT = 6
CLASSES = 4


def _walk(z: Tensor, radius: float, count: int = 1) -> tuple[Walk, ClassDraws]:
    walk = Walk(z.expand(count, -1).clone(), torch.full((count,), radius), torch.ones(count, dtype=torch.bool))
    return walk, ClassDraws(0, "sphere", torch.arange(count), CPU)


def _share_inside(distance: float, radius: float) -> float:
    """Share of a sphere of `radius` in R⁶ on the near side of a plane at `distance`: (1 + u₁)/2 is Beta(5/2, 5/2)."""
    return float(1 - beta.cdf((1 - min(1.0, distance / radius)) / 2, (LATENT - 1) / 2, (LATENT - 1) / 2))


def test_repulsion_in_a_half_space_is_along_its_normal() -> None:
    """Inside is n·z > 0. E[g] = −E[1{outside}u] = n·E[(−u₁)⁺] at the plane, which is half the mean of |u₁|."""
    normal = torch.nn.functional.normalize(torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0, 3.0]), dim=0)
    walk, draws = _walk(torch.zeros(LATENT), 0.3, count=400)
    before = walk.z.clone()
    walk.round(lambda z, rows: z @ normal > 0, draws, 32, 10)
    moved = walk.z - before
    accepted = moved.norm(dim=1) > 0
    assert accepted.float().mean() > 0.95
    mean = moved[accepted].mean(0) / 0.1  # steps are a third of the radius
    expected = math.gamma(LATENT / 2) / (math.sqrt(math.pi) * math.gamma((LATENT + 1) / 2)) / 2
    torch.testing.assert_close(mean, expected * normal, atol=0.02, rtol=0)


def test_the_radius_grows_where_the_sphere_is_inside_and_only_there() -> None:
    """29 of 32 points must be inside: at distance R all are, at the plane half of them."""
    normal = torch.eye(LATENT)[0]
    for distance, grows in ((1.01, True), (0.0, False)):
        walk, draws = _walk(distance * normal, 1.0, count=50)
        before = walk.z.clone()
        walk.round(lambda z, rows: z @ normal > 0, draws, 32, 10)
        assert torch.equal(walk.radius, torch.full((50,), 1.3 if grows else 1.0))
        assert torch.equal(walk.z, before) == grows  # a round widens, or moves


def _next_of(answers: Iterator[Tensor], z: Tensor, rows: Tensor) -> Tensor:
    return next(answers)


def test_exactly_twenty_nine_of_thirty_two() -> None:
    for inside, grows in ((28, False), (29, True)):
        walk, draws = _walk(torch.zeros(LATENT), 1.0)
        answers = iter([torch.arange(32) < inside, torch.ones(1, dtype=torch.bool)])
        walk.round(partial(_next_of, answers), draws, 32, 10)
        assert bool(walk.radius > 1) == grows


def test_a_move_that_leaves_the_class_is_refused_and_still_counts() -> None:
    walk, draws = _walk(torch.zeros(LATENT), 1.0)
    for _ in range(5):
        walk.round(lambda z, rows: torch.zeros(len(z), dtype=torch.bool), draws, 32, patience=5)
    assert torch.equal(walk.z, torch.zeros(1, LATENT))
    assert not walk.active.any()


def test_the_longest_step_is_three() -> None:
    """Everything outside but in one half: at radius 30 a third would be 10."""
    walk, draws = _walk(torch.zeros(LATENT), 30.0, count=20)
    walk.round(lambda z, rows: (z[:, 0] > 0) | (len(z) == 20), draws, 32, 10)
    expected = math.gamma(LATENT / 2) / (math.sqrt(math.pi) * math.gamma((LATENT + 1) / 2)) / 2
    assert float(walk.z[:, 0].mean()) == pytest.approx(3 * expected, abs=0.15)


def test_a_walk_in_a_half_space_ends_deep_with_the_radius_that_fits() -> None:
    """Latents are clipped to ±1.5, so the deepest point is 1.5 from the plane z₁ = 0; the radius stops where
    fewer than 29 of 32 points are inside often enough."""
    walk, draws = _walk(0.05 * torch.eye(LATENT)[0], 0.2, count=8)
    normal = torch.eye(LATENT)[0]
    while bool(walk.active.any()):
        walk.round(lambda z, rows: z @ normal > 0, draws, 32, 30)
    assert (walk.z[:, 0] > 1.2).all()

    def growth_in_thirty(radius: float) -> float:
        return float(1 - binom.cdf(28, 32, _share_inside(1.5, radius)) ** 30)

    for radius in walk.radius.tolist():
        assert growth_in_thirty(radius / 1.3) > 1e-3  # where it last grew, that was possible
        assert growth_in_thirty(radius) < 1 - 1e-3  # and where it stopped, not certain


_SHARPNESS = 0.3


class Blobs(nn.Module):
    """Scores that rise towards one latent a class, under the linear prior."""

    def __init__(self, mean: Tensor, directions: Tensor, deviations: Tensor, centres: Tensor) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.mean, self.maps = nn.Parameter(mean), nn.Parameter(directions / deviations[:, None])
        self.centres = nn.Parameter(centres)

    def forward(self, x: Tensor) -> Tensor:
        z = (self.flat(x) - self.mean) @ self.maps.T
        scores: Tensor = -_SHARPNESS * (z[:, None] - self.centres[None]).square().sum(2)
        return scores


PUBLIC = ImageSet(0.25 + smooth_images(200, "public") / 2, torch.zeros(200, dtype=torch.int64), ("a",))


def world(access: frozenset[Access], queries: int | None = None) -> tuple[View, Tensor]:
    """A target with a known best latent for each class."""
    prior = PRIORS.build(f"linear:components={LATENT}")
    state = prior.fit(PUBLIC, seeds.generator(0, "prior", "linear"), device=CPU)
    centres = 0.6 * torch.randn(CLASSES, LATENT, generator=seeds.generator(0, "centres")).clamp(-1, 1)
    mean, directions, deviations = (state.tensors[k] for k in ("mean", "directions", "deviations"))
    target = SplitModel(Blobs(mean, directions, deviations, centres), "flat")
    threat = ThreatModel(access, queries=queries)
    view = grant(target.eval(), threat, PUBLIC, seeds.generator(0, "o"), classes=CLASSES, device=CPU)
    return view, centres


def run(spec: dict[str, object], queries: int | None = None) -> tuple[View, Tensor, Reconstruction]:
    attack = ATTACKS.build({"prior": f"linear:components={LATENT}", **spec})
    view, centres = world(attack.needs, queries)
    rng = seeds.generator(0, "r")
    seen = Observed(classes=torch.arange(CLASSES))
    return view, centres, attack.reconstruct(view, attack.prepare(view, rng), seen, rng)


def latents(view: View, images: Tensor) -> Tensor:
    generator = view.prior(PRIORS.build(f"linear:components={LATENT}"))
    encoded: Tensor = generator.encode(images)  # type: ignore[operator]
    return encoded


def test_brepmi_ends_in_its_class_and_deeper_than_it_began() -> None:
    """Classes are Voronoi cells of the centres; depth is the distance to the nearest other cell."""

    def depth(z: Tensor, centres: Tensor) -> Tensor:
        far = (z[:, None] - centres[None]).square().sum(2)
        between = torch.cdist(centres, centres).fill_diagonal_(1)
        own = far.diag()
        return ((far - own[:, None]) / (2 * between)).fill_diagonal_(math.inf).amin(1)

    spec = {"kind": "brepmi", "radius": 0.5, "steps": 25}
    view, centres, started = run({**spec, "steps": 0})
    begun = depth(latents(view, started.images), centres)
    view, centres, ended = run(spec)
    z = latents(view, ended.images)
    assert ended.diagnostics.details["unreached"] == 0
    assert torch.cdist(z, centres).argmin(1).tolist() == list(range(CLASSES))
    assert (depth(z, centres) > begun).all()
    assert (depth(z, centres) > 0.3).all()


def test_brepmi_says_which_classes_it_never_saw() -> None:
    attack = ATTACKS.build({"kind": "brepmi", "prior": f"linear:components={LATENT}", "draws": 1, "steps": 3})
    view, _ = world(attack.needs)
    rng = seeds.generator(0, "r")
    result = attack.reconstruct(view, attack.prepare(view, rng), Observed(classes=torch.arange(CLASSES)), rng)
    assert result.diagnostics.details["unreached"] == pytest.approx(0.75)
    assert result.images.shape == (CLASSES, 1, 16, 16)


def test_first_members_are_the_first() -> None:
    """Against a plain loop over the same latents."""
    view, centres, result = run({"kind": "brepmi", "steps": 0, "images": 3})
    generator = view.prior(PRIORS.build(f"linear:components={LATENT}"))
    rng = seeds.generator(seed_from(seeds.generator(0, "r")), "members")
    drawn = torch.cat([generator.sample(256, rng) for _ in range(4)]).clamp(-1, 1)
    nearest = torch.cdist(drawn, centres).argmin(1)
    for label in range(CLASSES):
        truth = generator.decode(drawn[nearest == label][:3])
        torch.testing.assert_close(result.images[3 * label : 3 * label + 3], truth)


def test_the_genetic_search_comes_close_to_the_best_style_of_the_box() -> None:
    """−log softmax of these scores is convex in z: L-BFGS-B knows its minimum in the attack's box."""
    spec = {
        "kind": "mirror-blackbox", "samples": 300, "population": 60, "generations": 30, "confidence": 1.0,
        "truncation": 1.0, "mutation": 0.3,
    }  # fmt: skip
    view, centres, bred = run(spec)
    assert view.budget.spent == 300 + CLASSES * 59 * 30
    _, _, pool = run({**spec, "generations": 0})
    generator = view.prior(PRIORS.build(f"linear:components={LATENT}"))
    low, high, _ = style_bounds(generator, 300, seeds.generator(seed_from(seeds.generator(0, "r")), "box"))
    z = latents(view, bred.images)
    assert ((z >= low - 1e-3) & (z <= high + 1e-3)).all()

    def miss(z: Tensor, label: int) -> Tensor:
        scores = -_SHARPNESS * (z[None] - centres.double()).square().sum(1)
        return scores.logsumexp(0) - scores[label]

    bounds = list(zip(low.tolist(), high.tolist(), strict=True))
    lowest = [
        minimize(lambda x, k=k: float(miss(torch.from_numpy(x), k)), [0.0] * LATENT, bounds=bounds).fun
        for k in range(CLASSES)
    ]
    truth = sum(lowest) / CLASSES
    assert truth - 1e-4 <= bred.diagnostics.objective <= truth + 0.1 * (math.log(CLASSES) - truth)
    assert pool.diagnostics.objective != bred.diagnostics.objective


def test_it_stops_asking_when_it_is_confident() -> None:
    spec = {"kind": "mirror-blackbox", "samples": 100, "population": 20, "generations": 50, "confidence": 1e-3}
    view, _, _ = run(spec)
    assert view.budget.spent == 100


@pytest.mark.parametrize("queries", [20, 57, 150, 1000])
def test_a_budget_is_never_exceeded_and_what_was_found_is_returned(queries: int) -> None:
    for spec in (
        {"kind": "mirror-blackbox", "samples": 400, "population": 20, "generations": 50, "confidence": 1.0},
        {"kind": "brepmi", "steps": 200},
    ):
        view, _, result = run(spec, queries)
        assert 0 < view.budget.spent <= queries
        assert result.images.shape == (CLASSES, 1, 16, 16)
        assert result.images.isfinite().all()


@pytest.mark.parametrize(("kind", "least"), [("mirror-blackbox", 20), ("brepmi", CLASSES)])
def test_a_budget_too_small_to_start_is_one_line(kind: str, least: int) -> None:
    spec: dict[str, object] = {"kind": kind}
    if kind == "mirror-blackbox":
        spec |= {"samples": 40, "population": 20}
    with pytest.raises(UsageError, match=f"starts with {least} queries and {least - 1} are left; raise queries"):
        run(spec, least - 1)


def test_styles_are_clipped_in_p_space() -> None:
    """Every style a search visits is inside mean ± σ of P, whatever the slope of the mapping's last rectifier."""
    from leakscope.core.prior import Generator

    class Bent(Generator):
        shape, latent, slope = (1, 2, 2), 3, 0.2

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("nothing", torch.zeros(1))

        def decode(self, z: Tensor) -> Tensor:
            return z.new_zeros(len(z), 1, 2, 2)

        def to_style(self, z: Tensor, truncation: float = 1.0) -> Tensor:
            return truncation * torch.nn.functional.leaky_relu(2 * z + 0.5, 0.2)

    bent = Bent()
    low, high, deviation = style_bounds(bent, 50_000, seeds.generator(0, "b"))
    # p = 2z + ½ exactly, so the box of P is ½ ± 2, and W's is its image.
    torch.testing.assert_close(deviation, torch.full((3,), 2.0), atol=0.05, rtol=0)
    torch.testing.assert_close(high, torch.full((3,), 2.5), atol=0.05, rtol=0)
    torch.testing.assert_close(low, torch.full((3,), -1.5 * 0.2), atol=0.05, rtol=0)
    w = torch.tensor([[9.0, -9.0, 0.1]]).clamp(low, high)
    p = to_p(bent, w)
    assert ((p - 0.5).abs() <= deviation + 0.05).all()
    torch.testing.assert_close(from_p(bent, to_p(bent, w)), w)
