"""CEM as published and by the log-determinant, against loops and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Stack, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._kmeans import fit, nearest, seeded
from leakscope.defenses.cem import CEM, Mixture
from leakscope.defenses.cem_logdet import CEMLogDet, RunningMoments
from leakscope.testing import DefenseContract


class TestCEM(DefenseContract):
    @pytest.fixture(params=[False, True])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return CEM(16, clusters=2, two_stage=request.param)

    @pytest.fixture
    def neutral(self) -> Defense:
        return CEM(0)

    def step(self, defense: Defense) -> tuple[SplitModel, Step, nn.Module]:
        """In the second epoch, from which on there is a penalty."""
        split, step, aux = super().step(defense)
        defense.before_epoch(split, aux, self.batch(), 1)
        return split, replace(step, epoch=1), aux

    def test_the_first_epoch_has_no_penalty_and_the_second_has(self, defense: Defense) -> None:
        _, first, _ = super().step(defense)
        assert defense.penalty(first) is None
        assert defense.penalty(self.step(defense)[1]) is not None

    def test_two_stages_equal_one_backward(self) -> None:
        gradients = []
        for two_stage in (False, True):
            defense = CEM(16, clusters=2, two_stage=two_stage)
            split, step, _ = self.step(defense)
            penalty = defense.penalty(step)
            assert penalty is not None
            defense.backward(step.task_loss + penalty, step)
            gradients.append([p.grad for p in split.parameters() if p.grad is not None])
        assert len(gradients[0]) == len(gradients[1])
        for one, two in zip(*gradients, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)

    def test_the_feature_pass_leaves_a_frozen_layer_frozen(self, defense: Defense) -> None:
        split, _, aux = super().step(defense)
        frozen = next(m for m in split.modules() if isinstance(m, nn.Conv2d)).eval()
        defense.before_epoch(split, aux, self.batch(), 1)
        assert not frozen.training
        assert split.training


class TestCEMLogDet(DefenseContract):
    @pytest.fixture(params=[1, 3])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return CEMLogDet(1.0, clusters=request.param)

    @pytest.fixture
    def neutral(self) -> Defense:
        return CEMLogDet(0)


def _features(n: int, width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = seeds.generator(seed, "features")
    y = torch.randint(classes, (n,), generator=rng)
    return torch.rand(n, width, generator=rng) + 0.3 * y[:, None], y


def _mixture(z: Tensor, y: Tensor, classes: int, clusters: int) -> Mixture:
    made = Mixture(classes, clusters, z.shape[1], len(z), torch.tensor(3))
    made.refit(z, y, 50)
    return made


def _slow_surrogate(cem: CEM, mixture: Mixture, z: Tensor, y: Tensor) -> Tensor:
    """The published loops over classes and clusters."""
    classes, total = len(mixture.weights), torch.zeros(())
    present = y.unique().tolist()
    for c in present:
        own = z[y == c]
        near = torch.stack([(own - mu).square().sum(1) for mu in mixture.centroids[c]], 1).argmin(1)
        for k in range(cem.clusters):
            group = own[near == k]
            w = mixture.weights[c, k].item()
            if len(group) == 0 or w == 0:
                continue
            now = (group - mixture.centroids[c, k]).square().mean()
            a = cem.pull * len(group) / (w * mixture.samples / classes)
            a = 0.99 if a >= 1 else a
            v = a * now + (1 - a) * mixture.variances[c, k]
            total = total + w * (
                torch.log(v + cem.gamma) - torch.log(torch.tensor(cem.rho * cem.sigma**2 + cem.gamma))
            ).clamp_min(0)
    return total / len(present)


@pytest.mark.parametrize(("classes", "clusters", "batch"), [(3, 2, 20), (5, 3, 8), (12, 5, 15), (2, 1, 6)])
def test_surrogate_is_the_loop(classes: int, clusters: int, batch: int) -> None:
    z, y = _features(400, 6, classes, 0)
    cem, mixture = CEM(clusters=clusters), _mixture(z, y, classes, clusters)
    picked = torch.randperm(400, generator=seeds.generator(0, "batch"))[:batch]
    fast, slow = (z[picked].clone().requires_grad_() for _ in range(2))
    value, expected = cem.surrogate(mixture, fast, y[picked]), _slow_surrogate(cem, mixture, slow, y[picked])
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    value.backward()
    expected.backward()
    assert fast.grad is not None
    assert fast.grad.abs().sum() > 0
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-5, atol=1e-6)


def test_kmeans_finds_what_was_put_there() -> None:
    """Four well-separated points in each of three classes, with little noise."""
    rng = seeds.generator(0, "centres")
    centres = 10 * torch.randn(3, 4, 5, generator=rng)
    y = torch.arange(240) % 3
    true = (torch.arange(240) // 3) % 4
    z = centres[y, true] + 0.01 * torch.randn(240, 5, generator=rng)
    found = fit(z, y, seeded(z, y, 3, 4, seeds.generator(1, "seeded")), 50)
    for mine, real in zip(found, centres, strict=True):
        assert torch.cdist(real, mine).min(1).values.max() < 0.05
    assert (z - found[y, nearest(z, y, found)]).square().sum(1).max() < 0.1


def test_log_determinant_is_its_closed_form() -> None:
    """With no memory and one cluster, value and gradient are those of the batch's own variance."""
    z, y = _features(30, 4, 3, 1)
    fast, slow = z.clone().requires_grad_(), z.clone().requires_grad_()
    defense = CEMLogDet(2.0, sigma=0.1, clusters=1, memory=0)
    step = _bare_step(fast, y, RunningMoments(torch.zeros(3, 1, 4)))
    value = defense.penalty(step)
    assert value is not None
    expected = torch.zeros(())
    for c in range(3):
        own = slow[y == c]
        expected = expected + len(own) / 30 * 0.5 * torch.log(1 + own.var(0, unbiased=False) / 0.01).mean()
    torch.testing.assert_close(value, 2 * expected, rtol=1e-5, atol=1e-6)
    value.backward()
    (2 * expected).backward()
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-4, atol=1e-6)


def test_running_moments_are_weighted_averages() -> None:
    """After batches b, sample i of batch b weighs memory^(age of b)."""
    memory, moments = 0.7, RunningMoments(torch.full((2, 1, 3), 5.0))
    batches = [_features(7, 3, 2, seed) for seed in range(4)]
    for z, y in batches:
        moments.update(z, y, memory)
    z, y = torch.cat([z for z, _ in batches]), torch.cat([y for _, y in batches])
    w = torch.cat([torch.full((7,), memory ** (3 - age)) for age in range(4)])
    for c in range(2):
        own, weight = z[y == c], w[y == c][:, None] / w[y == c].sum()
        mean = (weight * own).sum(0)
        torch.testing.assert_close(moments.mean[c, 0], mean)
        torch.testing.assert_close(moments.variance()[c], (weight * (own - mean) ** 2).sum(0), rtol=1e-4, atol=1e-6)


def test_running_moments_see_variance_one_sample_at_a_time() -> None:
    """CIFAR-100 has 1.3 samples a class and batch: in-batch variance is 0, the running one is right."""
    rng, moments = seeds.generator(0, "single"), RunningMoments(torch.zeros(1, 1, 8))
    for _ in range(2000):
        moments.update(0.5 * torch.randn(1, 8, generator=rng), torch.zeros(1, dtype=torch.int64), 0.995)
    # About 400 effective samples × 8 dimensions: relative deviation √(2/3200) ≈ 0.025, four of them allowed.
    assert moments.variance().mean().item() == pytest.approx(0.25, rel=0.1)


def _bare_step(z: Tensor, y: Tensor, aux: nn.Module) -> Step:
    scores = torch.zeros(len(z), 2)
    return Step(
        x=z, y=y, features=z, released=z, scores=scores, task_loss=scores.sum(), split=None,  # type: ignore[arg-type]
        aux=aux, epoch=1, epochs=2, learning_rate=1e-4, rng=seeds.generator(0, "step"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("z", "labels"),
    [
        (torch.rand(8, 3), [0, 1, 1, 1, 1, 1, 1, 1]),
        (torch.rand(8, 3), [0, 1, 2, 3, 4, 5, 6, 6]),
        (torch.full((8, 3), 0.4), [0, 0, 0, 0, 1, 1, 1, 1]),
        (torch.zeros(8, 3), [0] * 8),
    ],
    ids=["a class of one", "1.1 samples a class", "constant", "zero and one class"],
)
def test_hard_batches_give_finite_values_and_gradients(z: Tensor, labels: list[int]) -> None:
    y = torch.tensor(labels)
    for defense, aux in (
        (CEM(clusters=5), _mixture(z, y, 7, 5)),
        (CEMLogDet(clusters=5), RunningMoments(z[:1].expand(7, 5, 3).clone())),
    ):
        features = z.clone().requires_grad_()
        value = defense.penalty(_bare_step(features, y, aux))
        assert value is not None
        assert value.isfinite()
        value.backward()
        assert features.grad is not None
        assert features.grad.isfinite().all()


def test_more_clusters_than_samples_of_a_class() -> None:
    class Flat(SplitModel):
        pass

    images = torch.rand(5, 1, 2, 2, generator=seeds.generator(0, "few"))
    data = ImageSet(images, torch.tensor([0, 1, 1, 1, 1]), ("a", "b", "never seen"))
    split = Flat(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 3)), "0")
    for defense in (CEM(clusters=4), CEMLogDet(clusters=4)):
        aux = defense.setup(split, data, seeds.generator(0, "setup"))
        defense.before_epoch(split, aux, data, 1)
        z = split.encode(images)
        value = defense.penalty(replace(_bare_step(z, data.labels, aux), features=z))
        assert value is not None
        assert value.isfinite()
        defense.notes(split, aux)


def test_two_owners_of_the_gradient_step_are_refused() -> None:
    with pytest.raises(ValueError, match="only one"):
        Stack((CEM(two_stage=True), CEM(two_stage=True)))
    Stack((CEM(), CEM(two_stage=True)))


@pytest.mark.parametrize(
    "made",
    [
        lambda: CEM(-1),
        lambda: CEM(sigma=0),
        lambda: CEM(clusters=0),
        lambda: CEM(schedule="cosine"),  # type: ignore[arg-type]
        lambda: CEMLogDet(-1),
        lambda: CEMLogDet(memory=1),
        lambda: CEMLogDet(clusters=0),
        lambda: CEMLogDet(schedule="cosine"),  # type: ignore[arg-type]
    ],
)
def test_bad_fields_are_refused(made: Callable[[], Defense]) -> None:
    with pytest.raises(ValueError, match="must be"):
        made()


def test_an_unknown_schedule_on_a_command_line_is_one_line() -> None:
    from leakscope.core.defense import build_defense

    with pytest.raises(UsageError) as caught:
        build_defense("cem:schedule=cosine")
    assert "\n" not in str(caught.value)
