"""Newton's method on the signs of a whole network, and what relies on it: exact peeling where errors grow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakscope.attacks import _residual_target
from leakscope.attacks._pictures import PictureSpace
from leakscope.attacks.auto import Auto
from leakscope.attacks.e2e_lbfgs import EndToEnd
from leakscope.attacks.peel_exact import PeelExact
from leakscope.attacks.peeling import krylov
from leakscope.attacks.peeling.take_apart import take_apart
from leakscope.attacks.peeling.whole import Whole, measured_scale
from leakscope.core import seeds
from leakscope.core.attack import Observed, Prepared
from leakscope.core.model import Normalize, SplitModel
from leakscope.core.threat import ThreatModel, grant
from leakscope.models.preact import PreactResNetArchitecture
from leakscope.testing.synthetic import CLASSES, CPU, image_set, smooth_images

SHAPE = (3, 12, 12)


def network(**settings: object) -> SplitModel:
    architecture = PreactResNetArchitecture(**{"width": 8, "strided": False, **settings})  # type: ignore[arg-type]
    with seeds.ambient(0, "model"):
        model = architecture.build(SHAPE, CLASSES)
    cut = architecture.default_cuts[-1]
    return SplitModel(model, cut, normalize=Normalize((0.5,) * 3, (0.25,) * 3)).eval().requires_grad_(False)


def decibels(guess: Tensor, truth: Tensor) -> Tensor:
    return -10 * (guess - truth).square().flatten(1).mean(1).log10()


def test_newton_ends_at_the_picture_once_most_signs_are_right() -> None:
    split, truth = network(init="xavier"), smooth_images(1, "p", SHAPE)
    chain, space = take_apart(split, SHAPE), PictureSpace(SHAPE, 0.2, 0.7, truth)
    y = split.encode(truth)
    rng = seeds.generator(0, "newton")
    problem = Whole(chain, y, space, measured_scale(chain, space, y, rng))
    near = truth + 0.02 * torch.randn(truth.shape, generator=rng)
    found = space.pixels(problem.newton(space.coordinates(near), steps=6, products=100, close=1e-6))
    assert decibels(near, truth).max() < 40
    assert decibels(found, truth).min() > 100


def test_exact_peeling_is_finished_where_errors_of_blocks_grow() -> None:
    split, truth = network(init="xavier"), smooth_images(1, "p", SHAPE)
    public = image_set(2, "public", SHAPE)
    view = grant(split, ThreatModel(), public, seeds.generator(0, "grant"), classes=CLASSES, device=CPU)
    found = PeelExact().reconstruct(view, Prepared(), Observed(split.encode(truth)), seeds.generator(0, "attack"))
    assert found.diagnostics.details["finished"] > 0
    assert decibels(found.images, truth).min() > 105


def test_a_basis_that_does_not_fit_has_fewer_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeds.generator(0, "gmres")
    matrix = torch.eye(40, dtype=torch.float64) + 0.02 * torch.randn(40, 40, generator=rng, dtype=torch.float64)
    rhs = torch.randn(3, 40, generator=rng, dtype=torch.float64)
    wanted = torch.linalg.solve(matrix, rhs.T).T
    calls = []

    def forward(v: Tensor) -> Tensor:
        calls.append(v)
        return v @ matrix.T

    monkeypatch.setattr(krylov, "_BASIS_BYTES", 3 * 40 * 8 * 13)  # a start and twelve more
    found = krylov.gmres(forward, rhs, iterations=40, tolerance=0.0)
    assert len(calls) == 12
    assert (found - wanted).norm() < 1e-6 * wanted.norm()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({}, PeelExact), ({"strided": True}, EndToEnd), ({"pooling": True}, PeelExact), ({"skip": False}, type(None))],
)
def test_the_solver_follows_the_network(settings: dict[str, object], kind: type) -> None:
    split = network(**{"width": 4, **settings})
    assert isinstance(_residual_target.residual_solver(split, SHAPE), kind)


def test_auto_solves_a_residual_network_that_no_decoder_could() -> None:
    split, truth = network(width=4, init="xavier"), smooth_images(2, "p", SHAPE)
    public = image_set(40, "public", SHAPE)
    view = grant(split, ThreatModel(), public, seeds.generator(0, "grant"), classes=CLASSES, device=CPU)
    prepared = Auto().prepare(view, seeds.generator(0, "prepare"))
    found = Auto().reconstruct(view, prepared, Observed(split.encode(truth)), seeds.generator(0, "attack"))
    assert prepared.diagnostics.details["solver"]["kind"] == "peel-exact"
    assert decibels(found.images, truth).min() > 100
