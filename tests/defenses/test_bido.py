"""BiDO's measures against brute force, definitions and pinned values; its layers against TL-DMI's freezing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._dependence import gaussian_kernel, label_kernel
from leakscope.defenses._hidden import chosen_layers
from leakscope.defenses.bido_coco import BidoCoco, constrained_covariance, doubly_centred
from leakscope.defenses.bido_hsic import BidoHsic, normalised_hsic, smoother
from leakscope.models.convnet import ConvNet
from leakscope.models.mlp import MLP
from leakscope.testing.synthetic import image_set, small_split

Matrix = NDArray[np.float64]


def _slow_gaussian(values: Matrix, sigma: float) -> Matrix:
    """exp(−‖a − b‖²/(2σ²·dim)), pair by pair."""
    m, dim = values.shape
    return np.array(
        [[np.exp(-((values[i] - values[j]) ** 2).sum() / (2 * sigma**2 * dim)) for j in range(m)] for i in range(m)]
    )


def _slow_hsic(first: Matrix, second: Matrix) -> float:
    """Σ_ij R[i, j] S[j, i], with the centring written as means and the inverse taken."""
    m = len(first)

    def r(kernel: Matrix) -> Matrix:
        a = kernel - kernel.mean(1, keepdims=True)  # K H takes the mean of each row out
        return np.asarray(a @ np.linalg.inv(a + 1e-5 * m * np.eye(m)))

    a, b = r(first), r(second)
    return float(sum(a[i, j] * b[j, i] for i in range(m) for j in range(m)))


samples = given(m=st.integers(2, 9), dim=st.integers(1, 7), sigma=st.sampled_from([0.5, 5.0]), seed=st.integers(0, 999))


@settings(max_examples=30, deadline=None)
@samples
def test_hsic_is_the_sum_over_pairs(m: int, dim: int, sigma: float, seed: int) -> None:
    rng = seeds.generator(seed, "hsic")
    a, b = torch.randn(m, dim, generator=rng), torch.randn(m, 3, generator=rng)
    y = torch.randint(3, (m,), generator=rng)
    slow = [_slow_gaussian(v.double().numpy(), sigma) for v in (a, b)]
    assert np.allclose(gaussian_kernel(a, sigma).numpy(), slow[0], atol=1e-12)
    got = normalised_hsic(smoother(gaussian_kernel(a, sigma)), smoother(gaussian_kernel(b, sigma))).item()
    assert got == pytest.approx(_slow_hsic(*slow), rel=1e-6, abs=1e-6)
    onehot = np.eye(3)[y.numpy()]
    with_labels = normalised_hsic(smoother(gaussian_kernel(a, sigma)), smoother(label_kernel(y, 3))).item()
    assert with_labels == pytest.approx(_slow_hsic(slow[0], onehot @ onehot.T), rel=1e-6, abs=1e-6)


@settings(max_examples=30, deadline=None)
@samples
def test_coco_is_the_largest_singular_value(m: int, dim: int, sigma: float, seed: int) -> None:
    """σ_max(K̃L̃) is the root of the largest eigenvalue of its Gram matrix."""
    rng = seeds.generator(seed, "coco")
    a, b = torch.randn(m, dim, generator=rng), torch.randn(m, 3, generator=rng)
    centre = np.eye(m) - 1 / m
    k, other = (centre @ _slow_gaussian(v.double().numpy(), sigma) @ centre for v in (a, b))
    product = k @ other
    top = np.sqrt(np.linalg.eigvalsh(product.T @ product).max())
    first, second = (doubly_centred(gaussian_kernel(v, sigma)) for v in (a, b))
    assert constrained_covariance(first, second, "spectral").item() == pytest.approx(np.sqrt(top) / m, rel=1e-5)
    whole = np.sqrt(np.sqrt((product**2).sum())) / m
    assert constrained_covariance(first, second, "frobenius").item() == pytest.approx(whole, rel=1e-6)


def test_coco_is_the_largest_covariance_of_unit_functions() -> None:
    """The definition: max over ‖f‖ = ‖g‖ = 1 in the two spaces of the empirical covariance of f(a) and g(b).

    With linear kernels f and g are unit vectors u and v, the covariance is uᵀCv, and the maximum σ_max(C).
    """
    rng = seeds.generator(0, "definition")
    a = torch.randn(40, 3, generator=rng, dtype=torch.float64)
    b = a[:, :2] @ torch.randn(2, 4, generator=rng, dtype=torch.float64) + 0.1 * torch.randn(40, 4, generator=rng)
    got = constrained_covariance(doubly_centred(a @ a.T), doubly_centred(b @ b.T), "spectral").item()
    covariance = (a - a.mean(0)).T @ (b - b.mean(0)) / 40
    u = torch.randn(2000, 3, generator=rng, dtype=torch.float64)
    u /= u.norm(dim=1, keepdim=True)
    best = (u @ covariance).norm(dim=1).max().item()  # for each u the best v is along uᵀC
    assert best <= got + 1e-12
    assert got == pytest.approx(best, rel=1e-2)


X = (torch.arange(24, dtype=torch.float64) / 24).view(4, 6)
Z = torch.arange(12, dtype=torch.float64).sin().view(4, 3)
Y = torch.tensor([0, 1, 2, 0])


def test_pinned_values_of_the_specification() -> None:
    x, z, y = gaussian_kernel(X, 5), gaussian_kernel(Z, 5), label_kernel(Y, 3)
    assert normalised_hsic(smoother(z), smoother(x)).item() == pytest.approx(0.84951, abs=1e-5)
    assert normalised_hsic(smoother(z), smoother(y)).item() == pytest.approx(1.69641, abs=1e-5)
    x, z, y = doubly_centred(x), doubly_centred(z), doubly_centred(y)
    assert constrained_covariance(z, x, "frobenius").item() == pytest.approx(0.0051016, abs=1e-7)
    assert constrained_covariance(z, y, "frobenius").item() == pytest.approx(0.058466, abs=1e-6)
    # The published weights (5, 50) belong to this norm, which is the default.
    coco = BidoCoco()
    assert (coco.input_weight, coco.label_weight) == (5, 50)
    assert coco.dependence(z, x).item() == pytest.approx(0.0051016, abs=1e-7)
    assert BidoCoco(norm="spectral").dependence(z, y).item() < coco.dependence(z, y).item()


def _step(split: SplitModel, defense: BidoHsic | BidoCoco, aux: nn.Module) -> Step:
    data = image_set(12, "bido")
    split.train()
    defense.before_epoch(split, aux, data, 0)
    out = split.run(data.images)
    task = nn.functional.cross_entropy(out.scores, data.labels)
    return Step(
        data.images, data.labels, out.features, out.released, out.scores, task, split, aux, 0, 2, 0.1,
        seeds.generator(0, "step"),
    )  # fmt: skip


@pytest.mark.parametrize("defense", [BidoHsic(0.3, 0.7, sigma=2), BidoCoco(0.3, 0.7, sigma=2)], ids=repr)
def test_the_penalty_sums_both_terms_over_the_layers(defense: BidoHsic | BidoCoco) -> None:
    split = small_split()
    aux = defense.setup(split, image_set(4, "bido"), seeds.generator(0, "s"))
    step = _step(split, defense, aux)
    z1 = split.model.get_submodule("features")(step.x)
    z2 = split.model.get_submodule("rest.1")(torch.relu(z1))

    def d(a: Tensor, b: Tensor) -> Tensor:
        return defense.dependence(defense.prepared(a), defense.prepared(b))

    x, y = gaussian_kernel(step.x, 2), label_kernel(step.y, 3)
    k1, k2 = (gaussian_kernel(z, 2) for z in (z1, z2))
    expected = 0.3 * d(k1, x) - 0.7 * d(k1, y) + 0.3 * d(k2, x) - 0.7 * d(k2, y)
    penalty = defense.penalty(step)
    assert penalty is not None
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-4)
    assert defense.notes(split, aux) == {"layers": ["features.2", "rest.1"]}
    assert not any(module._forward_hooks for module in split.modules())


def test_frozen_layers_add_nothing() -> None:
    """Stacked with TL-DMI the penalties are on unfrozen layers only."""
    defense, split = BidoHsic(0.3, 0.7), small_split()
    split.model.get_submodule("features").requires_grad_(False)
    aux = defense.setup(split, image_set(4, "bido"), seeds.generator(0, "s"))
    assert defense.penalty(_step(split, defense, aux)) is None  # only the head is free, and scores are not hidden
    named = BidoHsic(0.3, 0.7, layers=("features.2", "rest"))
    aux = named.setup(split, image_set(4, "bido"), seeds.generator(0, "s"))
    step = _step(split, named, aux)
    penalty = named.penalty(step)
    assert penalty is not None
    alone = BidoHsic(0.3, 0.7, layers=("rest",))
    aux = alone.setup(split, image_set(4, "bido"), seeds.generator(0, "s"))
    assert penalty.item() == alone.penalty(_step(split, alone, aux)).item()  # type: ignore[union-attr]


def test_more_passes_in_a_step_do_not_replace_its_features() -> None:
    defense, split = BidoHsic(), small_split()
    aux = defense.setup(split, image_set(4, "bido"), seeds.generator(0, "s"))
    step = _step(split, defense, aux)
    first = defense.penalty(step)
    split.run(image_set(12, "others").images)
    second = defense.penalty(step)
    assert first is not None
    assert second is not None
    assert first.item() == second.item()
    defense.after_step(split, aux)
    split.run(image_set(12, "others").images)
    assert defense.penalty(step).item() != first.item()  # type: ignore[union-attr]


def test_the_layers_of_common_networks() -> None:
    with seeds.ambient(0, "layers"):
        convnet = SplitModel(ConvNet().build((1, 28, 28), 10), "features.3")
        mlp = SplitModel(MLP().build((1, 28, 28), 10), MLP().default_cuts[0])
    x = torch.zeros(1, 1, 28, 28)
    assert chosen_layers(convnet, x, ()) == ("features.3", "features.7", "features.11")
    assert len(chosen_layers(mlp, x, ())) >= 1
    assert chosen_layers(convnet, x, ("features.2",)) == ("features.2",)
    with pytest.raises(UsageError, match="layer"):
        chosen_layers(convnet, x, ("features.99",))


@pytest.mark.parametrize("measure", [BidoHsic(), BidoCoco(), BidoCoco(norm="spectral")], ids=repr)
def test_constant_features_give_finite_gradients(measure: BidoHsic | BidoCoco) -> None:
    z = torch.full((6, 4), 0.3, requires_grad=True)
    y = measure.prepared(label_kernel(torch.arange(6) % 2, 2))
    value = measure.dependence(measure.prepared(gaussian_kernel(z, 5)), y)
    value.backward()
    assert value.isfinite()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("fields", [{"input_weight": -1}, {"label_weight": float("nan")}, {"sigma": 0}])
def test_bad_fields_are_refused(fields: dict[str, Any]) -> None:
    for made in (BidoHsic, BidoCoco):
        with pytest.raises(ValueError, match="must be"):
            made(**fields)
    with pytest.raises(ValueError, match="norm must be"):
        BidoCoco(norm="nuclear")  # type: ignore[arg-type]
