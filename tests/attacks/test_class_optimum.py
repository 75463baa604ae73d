"""A linear-softmax target under a linear prior, where the best picture is known; attacks must find it.

Scores are affine in the latent z of the prior, so every objective is a function of a few numbers that an
independent solver minimises: L-BFGS-B in double precision where it is convex, quadrature where it is an
expectation, a closed form where there is one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from leakscope.attacks._identity_losses import cross_entropy, poincare
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Observed, Reconstruction
from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.prior import PRIORS
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.priors.linear import LinearGenerator
from leakscope.testing.synthetic import CPU

SHAPE = (1, 6, 6)
LATENT = 4
PRIOR = f"linear:components={LATENT}"
LABELS = torch.arange(3)


def public_set() -> ImageSet:
    """Pictures of four factors, mild enough that no pixel is clipped, and as often mirrored as not."""
    rng = seeds.generator(0, "public")
    directions = torch.linalg.qr(torch.randn(36, LATENT, generator=rng)).Q.T.view(LATENT, 1, 6, 6)
    amounts = 0.3 * torch.randn(400, LATENT, generator=rng) * torch.tensor([1.0, 0.9, 0.8, 0.7])
    images = (0.5 + (amounts.view(400, LATENT, 1, 1, 1) * directions).sum(1)).clamp(0, 1)
    return ImageSet(images, torch.zeros(400, dtype=torch.int64), ("a",))


def linear_target(classes: int = 3, scale: float = 3.0) -> SplitModel:
    """Scores W(x − ½) + b; W is mirror symmetric, so that mirrored pictures score alike."""
    with seeds.ambient(0, "target", classes):
        linear = nn.Linear(36, classes)
    weight = scale * torch.randn(classes, 6, 6, generator=seeds.generator(0, "weight"))
    linear.weight.data = ((weight + weight.flip(2)) / 2).flatten(1)
    linear.bias.data -= linear.weight.data.sum(1) / 2
    return SplitModel(nn.Sequential(nn.Flatten(), linear), "0").eval()


class World:
    """An attack's view of a target, and the affine map from latents to scores."""

    def __init__(self, target: SplitModel, access: frozenset[Access], classes: int) -> None:
        self.view: View = grant(
            target,
            ThreatModel(access),
            public_set(),
            seeds.generator(0, "oracle"),
            classes=classes,
            device=CPU,
        )
        generator = self.view.prior(PRIORS.build(PRIOR))
        assert isinstance(generator, LinearGenerator)
        self.generator = generator
        weight, bias = (p.detach().double() for p in target.model.parameters())
        self.pixels = (generator.deviations[:, None] * generator.directions).double()  # latent×pixels
        self.slope = self.pixels @ weight.T  # latent×classes
        self.level = generator.mean.double() @ weight.T + bias

    def scores(self, z: Tensor) -> Tensor:
        return z @ self.slope + self.level

    def latents(self, images: Tensor) -> Tensor:
        return self.generator.encode(images).double()


def attacked(spec: dict[str, object], classes: int = 3, scale: float = 3.0) -> tuple[World, Reconstruction]:
    attack = ATTACKS.build(spec)
    world = World(linear_target(classes, scale), attack.needs, classes)
    prepared = attack.prepare(world.view, seeds.generator(0, "prepare"))
    seen = Observed(classes=torch.arange(classes))
    return world, attack.reconstruct(world.view, prepared, seen, seeds.generator(0, "reconstruct"))


def best(objective: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    """Minimiser and minimum in a box, in double precision."""

    def with_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        z = torch.from_numpy(x).requires_grad_()
        value = objective(z[None]).squeeze(0)
        (gradient,) = torch.autograd.grad(value, z)
        return float(value.detach()), gradient.numpy()

    bounds = list(zip(low.tolist(), high.tolist(), strict=True))
    found = minimize(with_gradient, np.zeros(len(low)), jac=True, bounds=bounds, method="L-BFGS-B", tol=1e-12)
    return torch.from_numpy(found.x), float(found.fun)


def unit_box(bound: float = 1.0) -> tuple[Tensor, Tensor]:
    high = torch.full((LATENT,), bound).double()
    return -high, high


def gmi_objective(world: World, label: int, weight: float) -> Callable[[Tensor], Tensor]:
    def objective(z: Tensor) -> Tensor:
        return z.square().mean(1) / 2 + weight * cross_entropy(world.scores(z), torch.tensor([label]).expand(len(z)))

    return objective


def test_gmi_finds_the_most_plausible_picture_of_the_class() -> None:
    spec = {"kind": "gmi", "prior": PRIOR, "images": 2, "steps": 500, "weight": 4.0, "learning_rate": 1.0}
    world, result = attacked(spec)
    z = world.latents(result.images).view(3, 2, LATENT)
    at_the_bound = 0
    for label in range(3):
        truth, _ = best(gmi_objective(world, label, 4.0), *unit_box())
        at_the_bound += int((truth.abs() == 1).sum())
        torch.testing.assert_close(z[label], truth.expand(2, -1), atol=2e-3, rtol=0)
    assert 0 < at_the_bound < 3 * LATENT  # the box matters, and so does the plausibility


def test_gmi_as_published_comes_close_to_the_minimum() -> None:
    world, result = attacked({"kind": "gmi", "prior": PRIOR, "images": 2, "steps": 600})
    z = world.latents(result.images).view(3, 2, LATENT)
    for label in range(3):
        objective = gmi_objective(world, label, 100.0)
        _, lowest = best(objective, *unit_box())
        start = float(objective(torch.zeros(1, LATENT).double()))
        found = float(objective(z[label]).max())
        assert lowest - 1e-3 <= found <= lowest + 0.01 * (start - lowest)


@pytest.mark.parametrize("pull", [0.0, 2.0])
def test_class_map_finds_the_likeliest_latent(pull: float) -> None:
    """Without a pull on the features the optimum is in closed form: the slope of the logit over the weight, in the box.

    Features are pixels here, and a mirrored picture has the same logit and, on average, the same distance from the
    mean picture, so that views without a shift leave the optimum where it is.
    """
    weight = 0.5
    spec = {
        "kind": "class-map", "prior": PRIOR, "images": 2, "steps": 600, "weight": weight, "shift": 0.0,
        "feature_weight": pull,
    }  # fmt: skip
    world, result = attacked(spec)
    z = world.latents(result.images).view(3, 2, LATENT)
    inside = 0
    for label in range(3):
        slope = world.slope[:, label]

        def objective(z: Tensor, slope: Tensor = slope) -> Tensor:
            return weight * z.square().sum(1) / 2 - z @ slope + pull * (z @ world.pixels).square().mean(1)

        truth, _ = best(objective, *unit_box())
        if pull == 0:
            torch.testing.assert_close(truth, (slope / weight).clamp(-1, 1), atol=1e-5, rtol=0)
        inside += int((truth.abs() < 1).sum())
        torch.testing.assert_close(z[label], truth.expand(2, -1), atol=0.02, rtol=0)
    assert 0 < inside < 3 * LATENT  # the box matters, and so does the density


def test_kedmi_gathers_at_the_best_picture() -> None:
    """E_q f ≥ min f, and the Gaussian may shrink: the draws' own objective comes close to the minimum."""
    world, result = attacked({"kind": "kedmi", "prior": PRIOR, "images": 20, "steps": 500})
    z = world.latents(result.images).view(3, 20, LATENT)
    for label in range(3):
        objective = gmi_objective(world, label, 100.0)
        _, lowest = best(objective, *unit_box())
        start = float(
            objective(torch.randn(200, LATENT, generator=seeds.generator(0, "s")).double().clamp(-1, 1)).mean()
        )
        found = float(objective(z[label]).mean())
        assert lowest - 1e-3 <= found <= lowest + 0.05 * (start - lowest)


def lomma_objective(world: World, label: int) -> Callable[[Tensor], Tensor]:
    """Features of this target are its pixels."""
    mean = world.view.public.images.flatten(1).double().mean(0)

    def objective(z: Tensor) -> Tensor:
        pixels = world.generator.mean.double() + z @ world.pixels
        pull = (pixels - mean).square().mean(1)
        return z.square().mean(1) / 2 + 100 * (pull - world.scores(z)[:, label])

    return objective


@pytest.mark.parametrize("kind", ["lomma-gmi", "lomma-kedmi"])
def test_lomma_finds_the_largest_logit_that_features_allow(kind: str) -> None:
    world, result = attacked({"kind": kind, "prior": PRIOR, "images": 3, "steps": 500, "students": []})
    z = world.latents(result.images).view(3, 3, LATENT)
    for label in range(3):
        objective = lomma_objective(world, label)
        _, lowest = best(objective, *unit_box())
        start = float(objective(torch.zeros(1, LATENT).double()))
        assert float(objective(z[label]).mean()) <= lowest + 0.03 * (start - lowest)
        assert float(objective(z[label]).mean()) >= lowest - 1e-2


def test_vmi_comes_close_to_the_gibbs_bound() -> None:
    """min_q E_q[ℓ] + β KL(q‖p) = −β log E_p[exp(−ℓ/β)], and ℓ depends on one Gaussian number when classes are two."""
    beta = 0.3
    world, result = attacked(
        {
            "kind": "vmi", "prior": PRIOR, "images": 2000, "steps": 300, "batch": 32, "learning_rate": 0.02,
            "divergence": beta, "couplings": 2, "levels": 1, "hidden": 8,
        },
        classes=2,
    )  # fmt: skip
    t = torch.linspace(-12, 12, 20_001).double()
    density = torch.exp(-t.square() / 2)
    bounds, starts = [], []
    for label in range(2):
        difference = world.slope[:, label] - world.slope[:, 1 - label]
        margin = world.level[label] - world.level[1 - label] + difference.norm() * t
        loss = nn.functional.softplus(-margin)
        bounds.append(float(-beta * torch.log((density * torch.exp(-loss / beta)).sum() / density.sum())))
        starts.append(float((density * loss).sum() / density.sum()))
    bound, start = sum(bounds) / 2, sum(starts) / 2
    assert result.diagnostics.objective is not None
    assert bound - 0.02 <= result.diagnostics.objective <= bound + 0.1 * (start - bound)


def test_ppa_descends_to_the_class_in_hyperbolic_space() -> None:
    """Scale means nothing to this distance: the best picture is where the other logits vanish.

    Brute force over directions of z comes less close than the attack does.
    """
    spec = {
        "kind": "ppa", "prior": PRIOR, "images": 2, "candidates": 200, "starts": 4, "steps": 400, "crop": 1.0,
        "views": 8, "truncation": 1.0, "learning_rate": 0.01,
    }  # fmt: skip
    world, result = attacked(spec)
    z = world.latents(result.images).view(3, 2, LATENT)
    for label in range(3):

        def objective(z: Tensor, label: int = label) -> Tensor:
            return poincare(world.scores(z), torch.tensor([label]).expand(len(z)))

        grid = 2 * torch.randn(400, LATENT, generator=seeds.generator(0, "grid")).double()
        assert float(objective(z[label]).max()) <= float(objective(grid).min())
        scores = world.scores(z[label])
        assert (scores[:, label] / scores.abs().sum(1) > 0.97).all()


def test_mirror_finds_the_best_style_of_the_box() -> None:
    """The target is mirror symmetric, so flips change nothing; without a mapping network P, W and Z are one."""
    world, result = attacked({"kind": "mirror", "prior": PRIOR, "images": 3, "samples": 400, "steps": 200})
    z = world.latents(result.images).view(3, 3, LATENT)
    for label in range(3):
        # The box is that of the attack: its own samples are what it knows of the prior.
        low, high = z.flatten(0, 1).amin(0), z.flatten(0, 1).amax(0)
        assert (low > -0.85).all()
        assert (high < 0.85).all()  # ± one deviation of 0.7·N(0, 1), and what 400 samples make of it

        def objective(z: Tensor, label: int = label) -> Tensor:
            return 10 * cross_entropy(world.scores(z), torch.tensor([label]).expand(len(z)))

        _, lowest = best(objective, low, high)
        assert float(objective(z[label]).max()) <= lowest + 1e-2


def test_miface_ends_at_the_corner_of_the_pixel_cube() -> None:
    """Two classes: softmax_y grows along w_y − w_other, so the best picture is 1 where that is positive."""
    spec = {"kind": "miface", "steps": 150, "learning_rate": 40.0, "confidence": 1.0, "window": 50, "start": "grey"}
    _, result = attacked(spec, classes=2, scale=0.05)
    weight = linear_target(2, 0.05).model.get_submodule("1").weight
    assert isinstance(weight, Tensor)
    for label in range(2):
        corner = (weight[label] > weight[1 - label]).float()
        torch.testing.assert_close(result.images[label].flatten(), corner, atol=1e-3, rtol=0)
    assert result.diagnostics.diverged == 0


@pytest.mark.parametrize("kind", ["gmi", "kedmi", "lomma-gmi"])
def test_more_steps_do_not_raise_the_objective(kind: str) -> None:
    spec = {"kind": kind, "prior": PRIOR, "images": 1, **({"students": []} if kind.startswith("lomma") else {})}
    few, many = (attacked({**spec, "steps": steps})[1].diagnostics.objective for steps in (5, 100))
    assert few is not None
    assert many is not None
    assert many < few
