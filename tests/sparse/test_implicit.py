"""Implicit gradients against finite differences and against unrolling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakscope.core.seeds import generator
from leakscope.sparse import Abcd, Implicit, Terms, differentiable, pose, solve, unit_norm


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed, "test", *shape))


def optimum(x: Tensor, dictionary: Tensor, terms: Terms) -> Tensor:
    """The support by `abcd`, then its values to rounding: D_SᵀD_S r = D_Sᵀx − λ·sign(r) on the unfolded D.

    Finite differences need codes better than a solver that watches its objective can see (√ε).
    """
    codes = solve(x, dictionary, solver=Abcd(tolerance=1e-8, sweeps=2000), **terms).codes
    problem = pose(x, dictionary, **terms)
    flat = codes.flatten(1)
    columns = torch.eye(flat.shape[1], dtype=x.dtype).view(-1, *problem.codes_shape[1:])
    unfolded = problem.rec(columns).flatten(1)  # one row a code
    for row, image in zip(flat, problem.canvas.flatten(1), strict=True):
        support = row != 0
        active = unfolded[support]
        right = active @ image - problem.penalty * row[support].sign()
        row[support] = torch.linalg.solve(active @ active.T, right)
    exact = flat.view_as(codes)
    assert float(problem.kkt_violation(exact.view(problem.codes_shape)).max()) < 1e-9
    return exact


def coded(x: Tensor, dictionary: Tensor, terms: Terms) -> Tensor:
    codes = optimum(x.detach(), dictionary.detach(), terms)
    return differentiable(codes, x, dictionary, Implicit(iterations=200, tolerance=1e-12), **terms)


@pytest.mark.parametrize(
    ("shape", "atoms", "stride", "nonneg"),
    [
        ((2, 2, 4, 4), (3, 2, 3, 3), 1, True),
        ((2, 1, 5, 4), (3, 1, 3, 3), 2, False),
        ((1, 1, 7, 7), (2, 1, 3, 3), 3, True),  # the stride leaves pixels that no atom reaches
        ((2, 2, 6), (3, 2, 3), 2, True),
        ((2, 5), (4, 5), 1, False),
    ],
)
def test_gradcheck(shape: tuple[int, ...], atoms: tuple[int, ...], stride: int, nonneg: bool) -> None:
    x, dictionary = draw(*shape).requires_grad_(), unit_norm(draw(*atoms, seed=1)).requires_grad_()
    terms = Terms(penalty=0.2, stride=stride, nonneg=nonneg)
    assert (coded(x, dictionary, terms) != 0).sum() >= 3
    slow = len(shape) == 2  # every entry of the Jacobian; for the others one random projection
    assert torch.autograd.gradcheck(lambda x, d: coded(x, d, terms), (x, dictionary), fast_mode=not slow)


def test_agrees_with_unrolled_ista() -> None:
    x, dictionary = draw(2, 5).requires_grad_(), unit_norm(draw(4, 5, seed=1)).requires_grad_()
    weight = draw(2, 4, seed=2)
    codes = torch.zeros(2, 4, dtype=torch.float64)
    for _ in range(2000):
        codes = (codes + 0.3 * ((x - codes @ dictionary) @ dictionary.T - 0.1)).clamp_min(0)
    unrolled = torch.autograd.grad((codes * weight).sum(), (x, dictionary))
    ours = torch.autograd.grad((coded(x, dictionary, Terms(penalty=0.1)) * weight).sum(), (x, dictionary))
    torch.testing.assert_close(ours, unrolled, rtol=1e-5, atol=1e-6)


def test_a_code_of_zeros_has_zero_gradient() -> None:
    x, dictionary = (0.01 * draw(2, 5)).requires_grad_(), unit_norm(draw(4, 5, seed=1)).requires_grad_()
    gradients = torch.autograd.grad(coded(x, dictionary, Terms(penalty=1.0)).sum(), (x, dictionary))
    assert all((gradient == 0).all() for gradient in gradients)


def test_dependent_active_atoms_give_finite_gradients() -> None:
    """Two equal atoms make the active system singular; conjugate gradients must not divide by it."""
    atom = unit_norm(draw(1, 5))
    x, dictionary = draw(1, 5).requires_grad_(), torch.cat([atom, atom, -atom]).requires_grad_()
    codes = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    incoming = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    out = differentiable(codes, x, dictionary, Implicit(), penalty=0.1)
    for gradient in torch.autograd.grad(out, (x, dictionary), incoming):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("fields", [{"iterations": 0}, {"tolerance": -1.0}])
def test_bad_settings_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="iterations ≥ 1"):
        Implicit(**fields)  # type: ignore[arg-type]
