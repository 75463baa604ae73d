"""Solvers against scikit-learn on the unfolded dictionary, against optimality conditions, against each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Lasso
from torch import Tensor

from leakscope.core.seeds import generator
from leakscope.sparse import Abcd, Fista, Lca, Problem, Solver, choose, pose, solve, standardized, unit_norm

TIGHT: list[Solver] = [
    Fista(tolerance=1e-9, iterations=20_000),
    Abcd(tolerance=1e-9, sweeps=5_000),
    Lca(tau=10, iterations=3_000, tolerance=1e-4),
    Lca(tau=10, iterations=3_000, tolerance=1e-4, gram=False),
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed, "test", *shape))


def unfolded(problem: Problem) -> np.ndarray:
    """The dictionary as a matrix: one column for every atom at every position, by brute force."""
    _, features, down, across = problem.codes_shape
    columns = torch.eye(features * down * across, dtype=torch.float64).view(-1, features, down, across)
    return problem.rec(columns).flatten(1).T.numpy()


def sklearn_optimum(problem: Problem) -> Tensor:
    """½‖x − Dr‖² + λ‖r‖₁ by coordinate descent; scikit-learn divides the first term by the rows."""
    dictionary = unfolded(problem)
    rows = len(dictionary)
    values = []
    for image in problem.canvas.flatten(1).numpy():
        lasso = Lasso(
            alpha=problem.penalty / rows, positive=problem.nonneg, fit_intercept=False, tol=1e-10, max_iter=100_000
        )
        codes = lasso.fit(dictionary, image).coef_
        values.append(0.5 * np.square(image - dictionary @ codes).sum() + problem.penalty * np.abs(codes).sum())
    return torch.tensor(values)


Shape = tuple[int, ...]
CASES: dict[str, tuple[Shape, Shape, int | Shape]] = {
    "images": ((2, 2, 6, 5), (5, 2, 3, 3), 1),
    "stride 2": ((3, 1, 8, 8), (6, 1, 5, 5), 2),
    "unequal kernel": ((2, 1, 6, 9), (4, 1, 3, 5), (2, 1)),
    "signals": ((3, 2, 17), (4, 2, 5), 2),
    "vectors": ((4, 9), (14, 9), 1),
}


@pytest.mark.parametrize("solver", TIGHT, ids=["fista", "abcd", "lca-gram", "lca-residual"])
@pytest.mark.parametrize("nonneg", [True, False], ids=["nonneg", "signed"])
@pytest.mark.parametrize("case", CASES)
def test_reaches_the_objective_of_scikit_learn(case: str, nonneg: bool, solver: Solver) -> None:
    shape, atoms, stride = CASES[case]
    x, dictionary = draw(*shape), unit_norm(draw(*atoms, seed=1))
    found = solve(x, dictionary, penalty=0.3, stride=stride, nonneg=nonneg, solver=solver)
    truth = sklearn_optimum(pose(x, dictionary, penalty=0.3, stride=stride, nonneg=nonneg))
    torch.testing.assert_close(found.objective, truth, rtol=1e-5, atol=0)
    assert found.converged.all()
    if nonneg:
        assert (found.codes >= 0).all()
    else:
        assert (found.codes < 0).any()


@settings(max_examples=30)
@given(
    channels=st.integers(1, 3),
    features=st.integers(1, 12),
    height=st.integers(1, 8),
    width=st.integers(1, 8),
    kernel=st.sampled_from([(1, 1), (3, 3), (5, 5), (3, 5), (7, 3)]),
    step=st.integers(1, 7),
    penalty=st.sampled_from([0.01, 0.1, 0.25, 1.0]),
    nonneg=st.booleans(),
    solver=st.sampled_from([Abcd(tolerance=1e-10, sweeps=4000), Fista(tolerance=1e-10, iterations=8000)]),
)
def test_optimality_conditions_hold(
    channels: int,
    features: int,
    height: int,
    width: int,
    kernel: tuple[int, int],
    step: int,
    penalty: float,
    nonneg: bool,
    solver: Solver,
) -> None:
    stride = (min(step, kernel[0]), min(step, kernel[1]))
    x, dictionary = draw(2, channels, height, width), unit_norm(draw(features, channels, *kernel, seed=2))
    found = solve(x, dictionary, penalty=penalty, stride=stride, nonneg=nonneg, solver=solver)
    problem = pose(x, dictionary, penalty=penalty, stride=stride, nonneg=nonneg)
    assert found.codes.shape[2:] == ((height - 1) // stride[0] + 1, (width - 1) // stride[1] + 1)
    torch.testing.assert_close(problem.objective(found.codes), found.objective)
    gap = problem.duality_gap(found.codes)
    assert (gap >= -1e-9).all()
    assert (gap <= 1e-3 * found.objective + 1e-9).all()
    assert (problem.kkt_violation(found.codes) <= 1e-3).all()


def test_operators_are_adjoint() -> None:
    problem = pose(draw(2, 3, 8, 7), draw(5, 3, 5, 3, seed=1), penalty=0.1, stride=(2, 3))
    codes, canvas = draw(*problem.codes_shape, seed=2), draw(*problem.canvas.shape, seed=3)
    torch.testing.assert_close((problem.rec(codes) * canvas).sum(), (codes * problem.corr(canvas)).sum())
    by_autograd = problem.atoms.clone().requires_grad_()
    product = torch.nn.functional.conv_transpose2d(codes, by_autograd, stride=problem.stride) * canvas
    (gradient,) = torch.autograd.grad(product.sum(), by_autograd)
    torch.testing.assert_close(problem.atom_gradient(canvas, codes), gradient)


def test_lca_forms_agree_step_by_step() -> None:
    x, dictionary = draw(2, 2, 9, 8), unit_norm(draw(6, 2, 5, 5, seed=1))
    for stride in (1, 2, 3):
        gram, residual = (
            solve(x, dictionary, penalty=0.2, stride=stride, solver=Lca(iterations=200, gram=gram)).codes
            for gram in (True, False)
        )
        torch.testing.assert_close(gram, residual)


def test_lca_is_the_published_recursion() -> None:
    """Dense case written out: u₀ = 0, and the answer is the code before the last state update."""
    x, dictionary = draw(3, 6), unit_norm(draw(9, 6, seed=1))
    u = torch.zeros(3, 9, dtype=torch.float64)
    for _ in range(24):
        a = (u - 0.2).clamp_min(0)
        u = u + (x @ dictionary.T - u - a @ (dictionary @ dictionary.T - torch.eye(9))) / 50
    expected = (u - 0.2).clamp_min(0)
    torch.testing.assert_close(solve(x, dictionary, penalty=0.2, solver=Lca(tau=50, iterations=25)).codes, expected)


@pytest.mark.parametrize("solver", [Abcd(), Fista()], ids=["abcd", "fista"])
@pytest.mark.parametrize("penalty", [0.1, 0.5])
def test_tolerance_bounds_the_distance_to_the_optimum(solver: Solver, penalty: float) -> None:
    x, dictionary = draw(4, 1, 9, 9).float(), unit_norm(draw(30, 1, 5, 5, seed=1)).float()
    rough = solve(x, dictionary, penalty=penalty, solver=solver)
    best = solve(x.double(), dictionary.double(), penalty=penalty, solver=Abcd(tolerance=1e-6)).objective
    above = rough.objective.double() / best - 1
    assert rough.converged.all()
    assert (above < solver.tolerance).all()
    assert (above > 1e-6).all()  # it did stop early


def test_a_warm_start_saves_iterations_and_keeps_the_answer() -> None:
    x, dictionary = draw(4, 2, 6, 6), unit_norm(draw(8, 2, 3, 3, seed=1))
    for solver in (Abcd(tolerance=1e-6), Fista(tolerance=1e-6), Lca(tau=10, tolerance=2e-3)):
        cold = solve(x, dictionary, penalty=0.2, solver=solver)
        warm = solve(x * 1.001, dictionary, penalty=0.2, solver=solver, start=cold.codes)
        again = solve(x * 1.001, dictionary, penalty=0.2, solver=solver)
        assert warm.iterations.float().mean() < 0.7 * again.iterations.float().mean()
        torch.testing.assert_close(warm.objective, again.objective, rtol=1e-4, atol=0)


def test_a_code_does_not_depend_on_its_batch() -> None:
    easy, hard = 0.05 * draw(2, 1, 7, 7), draw(3, 1, 7, 7, seed=4)
    dictionary = unit_norm(draw(20, 1, 5, 5, seed=1))
    for solver in (Abcd(), Fista()):
        together = solve(torch.cat([hard, easy]), dictionary, penalty=0.1, solver=solver)
        assert len(together.iterations.unique()) > 1
        alone = torch.cat([solve(x[None], dictionary, penalty=0.1, solver=solver).codes for x in (*hard, *easy)])
        torch.testing.assert_close(together.codes, alone)


def test_threads_change_nothing_but_time() -> None:
    x, dictionary = draw(10, 1, 12, 12).float(), unit_norm(draw(8, 1, 5, 5, seed=1)).float()
    one = solve(x, dictionary, penalty=0.2)
    torch.set_num_threads(3)
    try:
        three = solve(x, dictionary, penalty=0.2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(one.codes, three.codes)
    assert (one.iterations == three.iterations).all()


def test_the_penalty_of_the_largest_fit_gives_the_zero_code() -> None:
    """At λ = max corr(X) zero is optimal, and just below it is not: the closed form of the lasso's path."""
    x, dictionary = draw(1, 2, 8, 8), unit_norm(draw(6, 2, 3, 3, seed=1))
    edge = float(torch.nn.functional.conv2d(x, dictionary, padding=1).max())
    assert (solve(x, dictionary, penalty=edge).codes == 0).all()
    assert (solve(x, dictionary, penalty=0.95 * edge).codes != 0).any()


def test_orthonormal_atoms_have_a_closed_form() -> None:
    basis = torch.linalg.qr(draw(6, 6)).Q
    x = draw(5, 6, seed=1)
    expected = (x @ basis.T - 0.3).clamp_min(0)
    for solver in TIGHT:
        torch.testing.assert_close(solve(x, basis, penalty=0.3, solver=solver).codes, expected, atol=1e-3, rtol=0)


def test_choice_depends_on_shape_and_device() -> None:
    images = pose(torch.zeros(2, 1, 8, 8), torch.ones(4, 1, 5, 5), penalty=0.1)
    assert isinstance(choose(images), Abcd)
    for shape, atoms, stride, kind in (
        ((2, 1, 8, 8), (4, 1, 5, 5), 1, Fista),
        ((2, 1, 8, 8), (4, 1, 5, 5), 5, Abcd),
        ((2, 8), (4, 8), 1, Abcd),
    ):
        elsewhere = pose(torch.zeros(shape), torch.ones(atoms), penalty=0.1, stride=stride)
        moved = Problem(elsewhere.canvas.to("meta"), elsewhere.atoms.to("meta"), elsewhere.stride, 0.1, True)
        assert isinstance(choose(moved), kind)


def test_digits_have_the_objective_and_density_of_the_study(shared_data: Path) -> None:
    """spec/sca.md §7.1, F=16, stride 1, λ=0.25: J 93.4 for LCA at t = 5τ and 90.7 at best, density 6.3 and 4.2 %.

    Here t = 5τ in 50 steps of τ/10 instead of 500 of τ/100: the same flow in coarser steps.
    """
    with np.load(shared_data / "mnist.npz") as file:
        digits = torch.from_numpy(file["test_images"][:8]).float().unsqueeze(1) / 255
    dictionary = unit_norm(draw(16, 1, 5, 5)).float()
    ours, flow = (
        solve(standardized(digits), dictionary, penalty=0.25, solver=solver)
        for solver in (None, Lca(tau=10, iterations=50))
    )
    density, flow_density = (float((found.codes > 0).float().mean()) for found in (ours, flow))
    best, reached = float(ours.objective.mean()), float(flow.objective.mean())
    assert 70 < best < 115
    assert 0.02 < density < 0.08
    assert best < reached < 1.1 * best
    assert flow_density > 1.1 * density
