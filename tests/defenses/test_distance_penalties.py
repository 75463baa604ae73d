"""MixCon, UniCon and NoPeek against slow and obvious forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.data.gaussians import Gaussians
from leakscope.defenses.mixcon import MixCon, mixcon
from leakscope.defenses.nopeek import NoPeek, distance_correlation
from leakscope.defenses.unicon import UniCon, unicon
from leakscope.experiments.training import Training, train
from leakscope.models.mlp import MLP
from leakscope.testing import DefenseContract


class TestMixCon(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return MixCon(0.5, beta=1e-3)

    @pytest.fixture
    def neutral(self) -> Defense:
        return MixCon(0)


class TestUniCon(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return UniCon(0.5)

    @pytest.fixture
    def neutral(self) -> Defense:
        return UniCon(0)


class TestNoPeek(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return NoPeek(0.5)

    @pytest.fixture
    def neutral(self) -> Defense:
        return NoPeek(0)


def _unit(z: Tensor) -> np.ndarray:
    flat = z.flatten(1).double().numpy()
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12))


def _slow_mixcon(z: Tensor, y: Tensor, beta: float, epsilon: float) -> float:
    unit, labels = _unit(z), y.tolist()
    members = {c: [i for i, label in enumerate(labels) if label == c] for c in sorted(set(labels))}
    depth, total, pairs = min(len(m) for m in members.values()), 0.0, 0
    for i in range(depth):
        for a in members:
            for b in members:
                if a != b:
                    d = min(max(float(((unit[members[a][i]] - unit[members[b][i]]) ** 2).sum()), epsilon), 1 / epsilon)
                    total, pairs = total + d + beta / d, pairs + 1
    return total / pairs if pairs else 0.0


def _slow_unicon(z: Tensor, y: Tensor) -> float:
    unit, labels = _unit(z), y.tolist()
    shares = []
    for c in set(labels):
        own = [unit[i] for i, label in enumerate(labels) if label == c]
        total = sum(float(((a - b) ** 2).sum()) for a in own for b in own)
        shares.append(total / (len(own) * (len(own) - 1)) if len(own) > 1 else 0.0)
    return sum(shares) / len(shares)


batches = given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=14), width=st.integers(1, 6), seed=st.integers(0, 999)
)


@settings(max_examples=40, deadline=None)
@batches
def test_mixcon_is_the_double_loop(labels: list[int], width: int, seed: int) -> None:
    z = torch.randn(len(labels), width, 2, generator=seeds.generator(seed, "z"))
    got = mixcon(z, torch.tensor(labels), 1e-2, 1e-6).item()
    assert math.isclose(got, _slow_mixcon(z, torch.tensor(labels), 1e-2, 1e-6), rel_tol=1e-5, abs_tol=1e-5)


@settings(max_examples=40, deadline=None)
@batches
def test_unicon_is_the_double_loop(labels: list[int], width: int, seed: int) -> None:
    z = torch.randn(len(labels), width, 2, generator=seeds.generator(seed, "z"))
    got = unicon(z, torch.tensor(labels)).item()
    assert math.isclose(got, _slow_unicon(z, torch.tensor(labels)), rel_tol=1e-5, abs_tol=1e-5)


def test_mixcon_is_least_at_the_root_of_beta() -> None:
    """d + β/d is least at d = √β; two points on a circle are moved there."""
    angle = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.Adam([angle], 0.02)
    for _ in range(250):
        z = torch.stack([torch.tensor([1.0, 0.0]), torch.stack([angle.cos(), angle.sin()])])
        optimizer.zero_grad()
        mixcon(z, torch.tensor([0, 1]), 0.04, 1e-6).backward()
        optimizer.step()
    assert 2 - 2 * math.cos(angle.item()) == pytest.approx(0.2, rel=1e-2)


def _slow_correlation(x: np.ndarray, z: np.ndarray) -> float:
    """Székely's biased sample form, entry by entry."""
    n = len(x)

    def centred(v: np.ndarray) -> np.ndarray:
        d = np.array([[np.sqrt(((v[i] - v[j]) ** 2).sum()) for j in range(n)] for i in range(n)])
        return np.array(
            [[d[i, j] - d[i].sum() / n - d[:, j].sum() / n + d.sum() / n**2 for j in range(n)] for i in range(n)]
        )

    a, b = centred(x), centred(z)
    return float(np.sqrt((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())))


@pytest.mark.parametrize(("n", "seed"), [(4, 0), (9, 1), (16, 2)])
def test_distance_correlation_is_the_textbook_form(n: int, seed: int) -> None:
    rng = seeds.generator(seed, "dcor")
    x = torch.randn(n, 3, 2, 2, generator=rng) * 3
    z = x.flatten(1)[:, :4].tanh() + torch.randn(n, 4, generator=rng)
    expected = _slow_correlation(x.flatten(1).double().numpy(), z.double().numpy())
    # The floors of √1e-7 on the diagonal move the fifth digit.
    assert distance_correlation(x, z).item() == pytest.approx(expected, abs=2e-4)


def test_distance_correlation_of_a_similarity_is_one() -> None:
    x = torch.randn(12, 5, generator=seeds.generator(0, "similar"))
    turn = torch.linalg.qr(torch.randn(5, 5, generator=seeds.generator(1, "similar"))).Q
    assert distance_correlation(x, 3 * x @ turn + 1).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 0, 1]], ids=["one class", "all alone", "one"])
@pytest.mark.parametrize("constant", [0.0, 0.7])
def test_constant_features_give_finite_gradients(labels: list[int], constant: float) -> None:
    x, y = torch.rand(4, 3, generator=seeds.generator(0, "x")), torch.tensor(labels)
    losses: list[Callable[[Tensor], Tensor]] = [
        lambda z: mixcon(z, y, 0.01, 1e-6),
        lambda z: unicon(z, y),
        lambda z: distance_correlation(x, z),
    ]
    for loss in losses:
        z = torch.full((4, 6), constant, requires_grad=True)
        value = loss(z)
        value.backward()
        assert value.isfinite()
        assert z.grad is not None
        assert z.grad.isfinite().all()


@pytest.mark.parametrize(
    "made",
    [
        lambda: MixCon(-1),
        lambda: MixCon(beta=-1),
        lambda: MixCon(epsilon=0),
        lambda: UniCon(-0.1),
        lambda: NoPeek(float("nan")),
    ],
)
def test_bad_fields_are_refused(made: object) -> None:
    with pytest.raises(ValueError, match=r"must be|between"):
        made()  # type: ignore[operator]


@pytest.mark.parametrize(("beta", "learns"), [(0.0, False), (0.01, True)])
def test_without_beta_the_synthetic_set_collapses_to_chance(beta: float, learns: bool) -> None:
    """The paper's point: with β = 0 all features fall on one point; with β = 0.01 they stay apart."""
    data = Gaussians(count=800).load(None)
    with seeds.ambient(0, "mlp"):
        model = MLP((100, 2, 50)).build(data.shape, 2)
    split = SplitModel(model, "relu2", defense=MixCon(1, beta, epsilon=0.01, unit_norm=False))
    training = Training(
        epochs=60, batch=100, optimizer="sgd", learning_rate=0.01, momentum=0, weight_decay=0, schedule="constant"
    )
    trained, _, _ = train(split, data, training, seed=0, device=torch.device("cpu"))
    with torch.no_grad():
        accuracy = (trained(data.images).argmax(1) == data.labels).float().mean().item()
        distance = torch.pdist(trained.encode(data.images[:200])).mean().item()
    if learns:
        assert accuracy > 0.8
        assert distance > 0.05
    else:
        assert abs(accuracy - 0.5) < 0.03
        assert distance < 0.01


def test_raw_distances_are_those_of_the_features_as_they_are() -> None:
    z = torch.tensor([[0.0, 2.0], [0.0, 5.0]])
    assert mixcon(z, torch.tensor([0, 1]), 0.5, 1e-6, unit_norm=False).item() == pytest.approx(9 + 0.5 / 9)
    assert mixcon(z, torch.tensor([0, 1]), 0.0, 1e-6).item() == pytest.approx(1e-6)
