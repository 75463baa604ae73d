"""The layer: initialisation, standardisation, the dictionary update, gradients, bad input."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.core.seeds import generator
from leakscope.sparse import (
    Abcd,
    Diverged,
    Fista,
    Lca,
    SparseCoding,
    codes_key,
    encode_dataset,
    pose,
    solve,
    standardized,
    unit_norm,
)


def layer(*args: Any, seed: int = 0, **settings: Any) -> SparseCoding:
    return SparseCoding(*args, generator=generator(seed, "dictionary"), **settings)


def images(n: int = 4, channels: int = 1, side: int = 10, seed: int = 0) -> Tensor:
    return torch.rand(n, channels, side, side, generator=generator(seed, "images"))


def test_codes_the_standardised_input() -> None:
    coder, x = layer(2, 6, 3, penalty=0.2, solver=Abcd(tolerance=1e-3)), images(channels=2)
    flat = x.flatten(1)
    truth = ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)).view_as(x)
    torch.testing.assert_close(standardized(x), truth)
    expected = solve(truth, coder.dictionary, penalty=0.2, solver=Abcd(tolerance=1e-3)).codes
    codes = coder(x)
    torch.testing.assert_close(codes, expected, atol=1e-4, rtol=0)
    assert coder.last is not None
    assert coder.last.density == pytest.approx(float((codes > 0).float().mean()))
    assert coder.last.converged == 1
    assert coder.last.objective < float(0.5 * truth.flatten(1).square().sum(1).mean())


def codes_middle(size: tuple[int, ...]) -> int:
    """The flat index of the middle position, where no atom is cropped."""
    return sum(side // 2 * math.prod(size[axis + 1 :]) for axis, side in enumerate(size))


@pytest.mark.parametrize(("kernel", "size"), [(5, (8, 8)), ((3, 5), (8, 8)), ((5,), (12,)), ((), ())])
def test_the_kernel_says_what_is_coded(kernel: int | tuple[int, ...], size: tuple[int, ...]) -> None:
    coder = layer(3, 4, kernel, standardize=False, solver=Abcd(tolerance=1e-6), penalty=1e-3)
    norms = coder.dictionary.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(4))
    true_codes = torch.zeros(2, 4, *size)
    true_codes.view(2, 4, -1)[:, 1, codes_middle(size)] = 1.0
    x = coder.reconstruct(true_codes, size).detach()
    assert x.shape == (2, 3, *size)
    codes = coder(x)
    assert codes.shape == true_codes.shape
    # What was built from one atom is rebuilt from its code, but for the shrinkage.
    assert float((coder.reconstruct(codes, size) - x).abs().max()) < 0.02


def test_constant_and_zero_images_have_the_zero_code_and_a_finite_gradient() -> None:
    x = torch.cat([torch.full((1, 1, 9, 9), 0.1), torch.zeros(1, 1, 9, 9), images(1, side=9)]).requires_grad_()
    coder = layer(1, 5).eval()
    codes = coder(x)
    assert (codes[:2] == 0).all()
    assert (codes[2] > 0).any()
    codes.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert (x.grad[2] != 0).any()


def test_initial_atoms_are_truncated_and_repeatable() -> None:
    a, b, c = layer(1, 64, 5), layer(1, 64, 5), layer(1, 64, 5, seed=1)
    torch.testing.assert_close(a.dictionary, b.dictionary)
    assert (a.dictionary != c.dictionary).any()
    # Before normalisation entries lie in ±2 with deviation 0.880; a unit atom has norm ≈ 5 · 0.880.
    assert float(a.dictionary.abs().max()) < 2 / (5 * 0.6)
    assert float(a.dictionary.std()) == pytest.approx(1 / 5, rel=0.02)


def test_fast_update_is_the_written_formula() -> None:
    coder, x = layer(2, 3, 3, stride=2, penalty=0.1), images(3, 2, 7)
    codes = coder(x)
    before = coder.dictionary.clone()
    error = standardized(x) - coder.reconstruct(codes, (7, 7))
    padded = nn.functional.pad(error, (1, 1, 1, 1))
    expected = before.clone()
    for f in range(3):
        total = torch.zeros(2, 3, 3)
        for n in range(3):
            for i in range(4):
                for j in range(4):
                    total += codes[n, f, i, j] * padded[n, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        expected[f] += 0.05 / (1 + int((codes[:, f] != 0).sum())) * total
    coder.update_dictionary(x, codes, rate=0.05)
    torch.testing.assert_close(coder.dictionary.detach(), unit_norm(expected))


def test_fast_updates_lower_the_objective() -> None:
    coder, x = layer(1, 8, 5, penalty=0.2), images(16)
    codes = coder(x)
    first = coder.last
    for _ in range(15):
        coder.update_dictionary(x, codes, rate=1.0)
        codes = coder(x, start=codes)
    assert first is not None
    assert coder.last is not None
    assert coder.last.objective < 0.95 * first.objective


def test_gradients_flow_with_backprop_or_in_evaluation() -> None:
    x = images().requires_grad_()
    fixed, learnt = layer(1, 4), layer(1, 4, backprop=True)
    assert not fixed(x).requires_grad
    assert fixed.eval()(x).requires_grad
    learnt(x).square().sum().backward()
    assert learnt.dictionary.grad is not None
    assert float(learnt.dictionary.grad.abs().max()) > 0
    assert fixed.dictionary.grad is None
    with torch.no_grad():
        assert not learnt(x).requires_grad


def test_a_gradient_step_on_the_input_moves_the_code_as_asked() -> None:
    """An attacker matches a released code by descending through the solver."""
    coder = layer(1, 6, penalty=0.2, solver=Abcd(tolerance=1e-3)).eval()
    truth = coder(images(2)).detach()
    guess = (images(2) + 0.3 * images(2, seed=1)).requires_grad_()
    losses = []
    for _ in range(6):
        loss = (coder(guess) - truth).square().sum()
        (gradient,) = torch.autograd.grad(loss, guess)
        losses.append(loss.item())
        guess = (guess - 0.02 * gradient / gradient.norm() * loss.sqrt()).detach().requires_grad_()
    assert losses[-1] < 0.9 * losses[0]


def test_survives_copying_saving_and_half_precision_neighbours() -> None:
    coder, x = layer(1, 4), images()
    coder(x)
    twin = layer(1, 4, seed=9)
    twin.load_state_dict(copy.deepcopy(coder).state_dict())
    torch.testing.assert_close(twin(x), coder(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert coder(x).dtype == torch.float32


def test_encode_dataset_is_the_layer_in_batches() -> None:
    coder, x = layer(1, 4, solver=Abcd(tolerance=1e-3)), images(7)
    codes = encode_dataset(coder, x, batch=3)
    torch.testing.assert_close(codes, coder(x), atol=1e-4, rtol=0)
    assert coder.training
    assert encode_dataset(coder, x[:0]).shape == (0, 4, 10, 10)


def test_the_key_of_codes_knows_all_they_depend_on() -> None:
    x = images()
    keys = {
        codes_key(layer(1, 4), x),
        codes_key(layer(1, 4, penalty=0.3), x),
        codes_key(layer(1, 4, standardize=False), x),
        codes_key(layer(1, 4, solver=Fista()), x),
        codes_key(layer(1, 4, seed=1), x),
        codes_key(layer(1, 4), x + 1e-3),
    }
    assert len(keys) == 6
    assert codes_key(layer(1, 4), x) in keys


def call(x: Tensor, atoms: Tensor | None = None, **terms: Any) -> None:
    solve(x, torch.ones(2, 1, 3, 3) if atoms is None else atoms, **{"penalty": 0.1} | terms)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: call(images(), torch.ones(2, 1, 4, 4)), "odd"),
        (lambda: layer(1, 2, 4), "odd"),
        (lambda: call(images(), penalty=-0.1), "≥ 0"),
        (lambda: layer(1, 2, penalty=-0.1), "≥ 0"),
        (lambda: call(images(), penalty=float("nan")), "≥ 0"),
        (lambda: call(images(), stride=4), "between 1 and the kernel"),
        (lambda: call(images(), stride=0), "between 1 and the kernel"),
        (lambda: call(images(), stride=(1,)), "one step an axis"),
        (lambda: call(images().half()), r"call \.float\(\)"),
        (lambda: call(images().double()), "move one"),
        (lambda: call(images(channels=2)), "does not fit"),
        (lambda: call(images()[0]), "does not fit"),
        (lambda: call(images(), torch.ones(2)), "a dictionary is"),
        (lambda: call(images(), torch.full((2, 1, 3, 3), torch.nan)), "dictionary holds NaN"),
        (lambda: call(torch.cat([images(2), images(1) / 0])), "batch index 2 holds NaN"),
        (lambda: call(images(), start=torch.zeros(4, 3, 10, 10)), "warm start needs"),
        (lambda: layer(0, 2), "at least one"),
        (lambda: layer(1, 2, (3, 3, 3)), "at least one"),
        (lambda: encode_dataset(layer(1, 2), images(), batch=0), "at least 1"),
    ],
)
def test_bad_input_is_one_line(wrong: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        wrong()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("solver", [Abcd(), Fista(), Lca(iterations=20)], ids=["abcd", "fista", "lca"])
def test_a_non_finite_objective_names_its_sample(solver: Any) -> None:
    x = images(3)
    x[1] *= 1e30  # finite, but its square is not in float32
    with pytest.raises(Diverged, match="batch index 1") as caught:
        call(x, solver=solver)
    assert caught.value.sample == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: Abcd(tolerance=-1),
        lambda: Abcd(sweeps=0),
        lambda: Abcd(overrelaxation=2),
        lambda: Fista(tolerance=-1),
        lambda: Fista(iterations=0),
        lambda: Lca(tau=0.5),
        lambda: Lca(iterations=0),
        lambda: Lca(tolerance=-1),
    ],
)
def test_bad_solver_settings_are_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        build()


def test_penalty_zero_and_empty_batches_are_defined() -> None:
    x = images(2, side=6)
    found = solve(x, layer(1, 30, 3).dictionary, penalty=0.0, nonneg=False, solver=Fista(tolerance=1e-4))
    problem = pose(x, layer(1, 30, 3).dictionary.detach(), penalty=0.0, nonneg=False)
    inside = problem.residual(found.codes)[..., 1:-1, 1:-1]
    assert float(inside.square().mean()) < 1e-3 * float(x.square().mean())  # 30 atoms span every 3×3 patch
    assert solve(x[:0], torch.ones(2, 1, 3, 3), penalty=0.1).codes.shape == (0, 2, 6, 6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("solver", [None, Abcd(), Fista(), Lca()])
def test_cuda_agrees_with_cpu(solver: Any) -> None:
    coder, x = layer(1, 8, solver=solver), images()
    here = coder(x)
    there = coder.cuda()(x.cuda()).cpu()
    assert float((here - there).abs().mean()) < 0.05 * float(here.abs().mean())
