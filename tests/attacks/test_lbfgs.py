"""Batched L-BFGS against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize
from scipy.optimize import rosen, rosen_der
from torch import Tensor

from leakscope.attacks.peeling.lbfgs import minimise
from leakscope.attacks.peeling.lbfgs_unwatched import Limits, minimise_unwatched
from leakscope.core import seeds


def quadratics(count: int, size: int) -> tuple[Tensor, Tensor]:
    rng = seeds.generator(0, "quadratics")
    root = torch.randn(count, size, size, generator=rng, dtype=torch.float64)
    return root @ root.mT + 0.1 * torch.eye(size, dtype=torch.float64), torch.randn(
        count, size, generator=rng, dtype=torch.float64
    )


def quadratic_objective(matrices: Tensor, targets: Tensor):  # type: ignore[no-untyped-def]
    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        product = torch.einsum("nij,nj->ni", matrices[rows], x)
        return 0.5 * (x * product).sum(1) - (targets[rows] * x).sum(1), product - targets[rows]

    return objective


def test_quadratics_reach_their_solutions() -> None:
    matrices, targets = quadratics(7, 12)
    found = minimise(quadratic_objective(matrices, targets), torch.zeros_like(targets), iterations=200)
    torch.testing.assert_close(found.x, torch.linalg.solve(matrices, targets), atol=1e-5, rtol=1e-4)


def test_a_box_gives_the_answers_of_scipy() -> None:
    matrices, targets = quadratics(7, 12)
    found = minimise(
        quadratic_objective(matrices, targets), torch.full_like(targets, 0.5), iterations=300, low=0.0, high=1.0
    )
    for matrix, target, x in zip(matrices.numpy(), targets.numpy(), found.x.numpy(), strict=True):
        truth = scipy_minimize(
            lambda v, m=matrix, t=target: (0.5 * v @ m @ v - t @ v, m @ v - t),
            np.full(12, 0.5),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, 1)] * 12,
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        np.testing.assert_allclose(x, truth.x, atol=1e-5)


def test_rosenbrock_needs_no_more_work_than_twice_scipys() -> None:
    starts = torch.tensor([[-1.2, 1.0, -1.2, 1.0], [2.0, -1.0, 0.5, 3.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    counts: list[int] = []

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.tensor([rosen(row) for row in x.numpy()])
        return value, torch.tensor(np.stack([rosen_der(row) for row in x.numpy()]))

    found = minimise(objective, starts, iterations=300, memory=10)
    torch.testing.assert_close(found.x, torch.ones_like(starts), atol=1e-4, rtol=0)
    for start in starts:
        counts.append(
            scipy_minimize(rosen, start.numpy(), jac=rosen_der, method="L-BFGS-B", options={"maxcor": 10}).nfev
        )
    assert found.evaluations < 2 * sum(counts)


def test_rows_do_not_see_each_other() -> None:
    matrices, targets = quadratics(5, 8)
    together = minimise(quadratic_objective(matrices, targets), torch.zeros_like(targets), iterations=15)
    for row in range(5):
        objective = quadratic_objective(matrices[row : row + 1], targets[row : row + 1])
        alone = minimise(objective, torch.zeros(1, 8).double(), iterations=15)
        torch.testing.assert_close(alone.x[0], together.x[row])


def test_a_row_that_is_never_finite_stays_at_its_start() -> None:
    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        broken = (rows == 1).double() * math.nan
        return x.square().sum(1) + torch.where(rows == 1, broken, 0.0), 2 * x

    found = minimise(objective, torch.ones(3, 2).double(), iterations=20)
    assert found.value.tolist() == pytest.approx([0, math.inf, 0], abs=1e-12)
    assert torch.equal(found.x[1], torch.ones(2).double())


def test_a_cliff_of_nan_is_backed_away_from() -> None:
    """−log x − log(1 − x): a long first step leaves the domain, where values are nan."""

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return (-x.log() - (1 - x).log()).sum(1), -1 / x + 1 / (1 - x)

    found = minimise(objective, torch.tensor([[0.01, 0.98]]).double(), iterations=50)
    torch.testing.assert_close(found.x, torch.full((1, 2), 0.5).double(), atol=1e-5, rtol=0)


def test_the_curve_never_rises_and_ends_where_it_says() -> None:
    matrices, targets = quadratics(5, 8)
    found = minimise(quadratic_objective(matrices, targets), torch.zeros_like(targets), iterations=30)
    assert all(after <= before + 1e-12 for before, after in zip(found.curve, found.curve[1:], strict=False))
    assert found.curve[-1] == pytest.approx(float(found.value.mean()))
    assert minimise(quadratic_objective(matrices, targets), targets, iterations=0).x.equal(targets)


def rosenbrocks(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """One valley per row, each steeper than the last."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = (1 + rows) * (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("iterations", [0, 1, 7, 200])
@pytest.mark.parametrize(("low", "high"), [(-math.inf, math.inf), (0.0, 0.8)])
def test_an_accelerators_rows_take_the_steps_of_the_cpus(
    dtype: torch.dtype, iterations: int, low: float, high: float
) -> None:
    start = torch.randn(9, 5, generator=seeds.generator(0, "valleys"), dtype=dtype)
    start[3] = math.nan
    watched = minimise(rosenbrocks, start, iterations=iterations, memory=6, low=low, high=high, solved=1e-8)
    found = minimise_unwatched(rosenbrocks, start, Limits(iterations, 6, low, high, 1e-9, 1e-8))
    assert torch.equal(found.value, watched.value)
    assert torch.equal(found.x.nan_to_num(), watched.x.nan_to_num())
    assert found.evaluations == watched.evaluations
    assert found.curve == pytest.approx(watched.curve, rel=1e-5)


@pytest.mark.parametrize("run", ["watched", "unwatched"])
def test_each_row_ends_at_its_own_share(run: str) -> None:
    """Two equal problems: one is to be brought down to a half of its value, the other to a millionth."""
    matrices, targets = quadratics(1, 30)
    least = -0.5 * float(targets[0] @ torch.linalg.solve(matrices[0], targets[0]))
    plain = quadratic_objective(matrices.repeat(2, 1, 1), targets.repeat(2, 1))

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = plain(x, rows)
        return value - least, gradient

    shares, start = torch.tensor([0.5, 1e-6], dtype=torch.float64), torch.zeros(2, 30).double()
    if run == "watched":
        found = minimise(objective, start, iterations=300, solved=shares)
    else:
        found = minimise_unwatched(objective, start, Limits(300, 20, -math.inf, math.inf, 1e-9, shares))
    left = found.value / -least
    assert 1e-3 < left[0] <= 0.5
    assert left[1] <= 1e-6


def test_a_row_ends_when_a_window_gains_little() -> None:
    """Rosenbrock's valley in many dimensions is slow: 0.2 of the value in a window of 50 steps is not always there."""
    start = torch.full((1, 80), -1.0, dtype=torch.float64)

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.tensor([rosen(row) for row in x.numpy()])
        return value, torch.tensor(np.stack([rosen_der(row) for row in x.numpy()]))

    patient = minimise(objective, start, iterations=400, memory=3)
    content = minimise(objective, start, iterations=400, memory=3, gain=0.9)
    steps = len(content.curve) - 1
    assert steps % 50 == 0
    assert steps < len(patient.curve) - 1
    assert content.curve[-1] > 0.1 * content.curve[-51]  # the window that ended it
    for first in range(0, steps - 50, 50):
        assert content.curve[first + 50] <= 0.1 * content.curve[first]
