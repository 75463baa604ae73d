"""Noise, dropping and pruning of released features, against moments and brute force."""

from __future__ import annotations

import dataclasses
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import DEFENSES, Defense, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.spec import describe
from leakscope.defenses.dropout import Dropout
from leakscope.defenses.gaussian import Gaussian
from leakscope.defenses.laplace import Laplace
from leakscope.defenses.none import NoDefense
from leakscope.defenses.topk import TopK

RANDOM: list[Defense] = [Gaussian(0.3), Laplace(0.3), Dropout(0.3), Dropout(0.3, rescale=True)]
APPLIED: list[Any] = [*RANDOM, TopK(0.25), TopK(0.25, signed=True)]
IDLE: list[Defense] = [NoDefense(), Gaussian(0.0), Laplace(0.0), Dropout(0.0), Dropout(0.0, rescale=True), TopK(1.0)]

N = 200_000


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=seeds.generator(0, "features"))


def drawn(defense: Defense, z: Tensor, seed: int = 0) -> Tensor:
    return defense.release(z, seeds.generator(seed, "release"))


@pytest.mark.parametrize("defense", IDLE, ids=repr)
@pytest.mark.parametrize("training", [True, False])
def test_at_zero_strength_features_are_bit_equal(defense: Defense, training: bool) -> None:
    z = normal(3, 2, 4, 4)
    assert torch.equal(defense.release(z, seeds.generator(0), training=training), z)


@pytest.mark.parametrize("defense", APPLIED, ids=repr)
@pytest.mark.parametrize("shape", [(3, 8), (3, 5, 8), (3, 2, 4, 4)])
def test_release_is_reproducible_keeps_shape_and_leaves_its_input_alone(defense: Any, shape: tuple[int, ...]) -> None:
    z = normal(*shape)
    kept = z.clone()
    released = drawn(defense, z)
    assert torch.equal(z, kept)
    assert released.shape == z.shape
    assert released.dtype == z.dtype
    assert not torch.equal(released, z)
    assert torch.equal(released, drawn(defense, z))
    assert drawn(defense, z.double()).dtype == torch.float64
    last = z.contiguous(memory_format=torch.channels_last) if z.ndim == 4 else z
    assert torch.equal(drawn(TopK(0.25), last), drawn(TopK(0.25), z))


@pytest.mark.parametrize("defense", RANDOM, ids=repr)
def test_noise_is_fresh_and_comes_from_the_generator_given(defense: Defense) -> None:
    z = normal(3, 2, 4, 4)
    rng = seeds.generator(0, "release")
    first, second = defense.release(z, rng), defense.release(z, rng)
    assert not torch.equal(first, second)
    assert not torch.equal(first, drawn(defense, z, seed=1))
    ambient = torch.get_rng_state()
    drawn(defense, z)
    assert torch.equal(torch.get_rng_state(), ambient)
    with seeds.ambient(0, "default"):
        one = defense.release(z, None)
    with seeds.ambient(0, "default"):
        two = defense.release(z, None)
    assert torch.equal(one, two)


@pytest.mark.parametrize("defense", APPLIED, ids=repr)
def test_training_and_release_are_switched_apart(defense: Any) -> None:
    z = normal(3, 2, 4, 4)
    for in_training, at_release in [(True, False), (False, True)]:
        switched = dataclasses.replace(defense, in_training=in_training, at_release=at_release)
        assert torch.equal(switched.release(z, seeds.generator(0), training=True), z) != in_training
        assert torch.equal(switched.release(z, seeds.generator(0), training=False), z) != at_release
    with pytest.raises(ValueError, match="do nothing"):
        dataclasses.replace(defense, in_training=False, at_release=False)


@pytest.mark.parametrize("defense", APPLIED, ids=repr)
def test_attacked_features_are_defended_features(defense: Any) -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3))
    split = SplitModel(network, "0", defense=defense).eval()
    x = torch.rand(5, 1, 4, 4, generator=seeds.generator(0, "x"))
    with torch.no_grad():
        sent = split.release(x, seeds.generator(0, "noise"))
        passed = split.run(x, seeds.generator(0, "noise"))
        assert torch.equal(sent, passed.released)
        assert torch.equal(passed.features, network[0](x))
        assert torch.equal(passed.scores, network[3](sent.relu().flatten(1)))


def test_gaussian_moments() -> None:
    # The mean of n draws deviates by σ/√n, their variance by σ²√(2/n), the fourth moment by σ⁴√(96/n).
    noise = drawn(Gaussian(0.5), torch.full((N // 50, 50), 3.0)).double() - 3
    assert noise.mean().abs() < 5 * 0.5 / sqrt(N)
    assert noise.var().item() == pytest.approx(0.25, rel=5 * sqrt(2 / N))
    assert noise.pow(4).mean().item() == pytest.approx(3 * 0.5**4, rel=5 * sqrt(96 / 9 / N))


def test_laplace_moments_and_median() -> None:
    # E|t| = b, variance 2b², kurtosis 6, so the variance deviates by 2b²√(5/n); half lies within b·ln 2.
    b = 0.5
    noise = drawn(Laplace(b), torch.full((N // 50, 50), 3.0)).double() - 3
    assert noise.mean().abs() < 5 * b * sqrt(2 / N)
    assert noise.abs().mean().item() == pytest.approx(b, rel=5 / sqrt(N))
    assert noise.var().item() == pytest.approx(2 * b * b, rel=5 * sqrt(5 / N))
    within = (noise.abs() < b * torch.tensor(2.0).log()).double().mean().item()
    assert within == pytest.approx(0.5, abs=5 * 0.5 / sqrt(N))
    assert noise.isfinite().all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("rescale", [False, True])
def test_dropout_drops_a_share_p_and_touches_nothing_else(p: float, rescale: bool) -> None:
    z = normal(N // 50, 50)
    released = drawn(Dropout(p, rescale=rescale), z)
    dropped = released == 0
    assert dropped.double().mean().item() == pytest.approx(p, abs=5 * sqrt(p * (1 - p) / N))
    assert torch.equal(released[~dropped], (z / (1 - p) if rescale else z)[~dropped])


def test_dropout_at_one_drops_everything_even_what_is_not_finite() -> None:
    assert not drawn(Dropout(1.0), torch.tensor([[1.0, float("inf"), float("nan")]])).any()


@given(
    size=st.integers(1, 40),
    keep=st.floats(0.01, 1.0),
    signed=st.booleans(),
    seed=st.integers(0, 99),
    ties=st.booleans(),
)
def test_topk_keeps_the_largest_of_each_sample(size: int, keep: float, signed: bool, seed: int, ties: bool) -> None:
    z = torch.randn(3, size, generator=seeds.generator(seed, "z"))
    z = z.round() if ties else z
    released = TopK(keep, signed=signed).release(z, None)
    for row, out in zip(z.tolist(), released.tolist(), strict=True):
        count = next(k for k in range(1, size + 1) if k >= keep * size - 1e-6)
        ranked = sorted(row, key=(lambda v: -v) if signed else (lambda v: -abs(v)))
        size_of = (lambda v: v) if signed else abs
        # With ties any of the equal ones may stay, but as many as in the ranking.
        kept = [r for r, o in zip(row, out, strict=True) if o != 0]
        wanted = [v for v in ranked[:count] if v != 0]
        assert sorted(map(size_of, kept)) == pytest.approx(sorted(map(size_of, wanted)))
        assert all(o in (0, r) for r, o in zip(row, out, strict=True))


def test_topk_never_mixes_samples() -> None:
    z = normal(4, 2, 3, 3)
    alone = torch.cat([TopK(0.2).release(row[None] * 10**i, None) / 10**i for i, row in enumerate(z)])
    torch.testing.assert_close(TopK(0.2).release(z, None), alone)


@pytest.mark.parametrize("defense", APPLIED, ids=repr)
def test_gradients_pass_where_features_do(defense: Any) -> None:
    z = normal(3, 2, 4, 4).requires_grad_()
    released = drawn(defense, z)
    (gradient,) = torch.autograd.grad(released.sum(), z)
    passes = torch.ones_like(z) if isinstance(defense, Gaussian | Laplace) else (released != 0).float()
    scale = 1 / 0.7 if getattr(defense, "rescale", False) else 1.0
    torch.testing.assert_close(gradient, passes * scale)


@pytest.mark.parametrize("defense", [*APPLIED, NoDefense()], ids=repr)
def test_specs_round_trip(defense: Defense) -> None:
    assert DEFENSES.build(describe(defense)) == defense
    assert build_defense(describe(defense)) == defense


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("gaussian:-0.1", "standard deviation"),
        ("gaussian:sigma=.nan", "standard deviation"),
        ("gaussian:sigma=.inf", "standard deviation"),
        ("gaussian:sgima=1", "did you mean sigma"),
        ("laplace:-1", "0 or more"),
        ("dropout:1.5", "probability"),
        ("dropout:1,rescale=true", "nothing to rescale"),
        ("topk:0", "share"),
        ("topk:1.1", "share"),
        ("gauss", "did you mean gaussian"),
    ],
)
def test_bad_settings_are_said_in_one_line(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        build_defense(spec)
    assert "\n" not in str(caught.value)


def test_noise_stacks_in_order() -> None:
    z = normal(50, 40)
    stacked = build_defense("gaussian:0.1+topk:0.25").release(z, seeds.generator(0, "stack"))
    noisy = Gaussian(0.1).release(z, seeds.generator(0, "stack"))
    assert torch.equal(stacked, TopK(0.25).release(noisy, None))
