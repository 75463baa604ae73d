"""The attention forms of CEM: their values, and whether they can game themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import Defense, Stack, Step
from leakscope.core.errors import UsageError
from leakscope.defenses._classes import by_class
from leakscope.defenses._slots import SlotSettings, rows, slot_attention, slot_moments
from leakscope.defenses._surrogate import DIRECTIONS
from leakscope.defenses.cem_fused import CEMFused, Fusion
from leakscope.defenses.cem_gated import CEMGated, Gates
from leakscope.defenses.cem_logdet import CEMLogDet
from leakscope.defenses.cem_slot import CEMSlot, Rewriting, Slots
from leakscope.defenses.gaussian import Gaussian
from leakscope.testing import DefenseContract

SMALL = SlotSettings(slots=2, rounds=2, silent_calls=0)


class TestGated(DefenseContract):
    @pytest.fixture(params=list(DIRECTIONS))
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return CEMGated(16, warmup=0, form=request.param)

    @pytest.fixture
    def neutral(self) -> Defense:
        return CEMGated(0, warmup=0)

    def test_stacks_with_noise_and_another_form(self) -> None:
        stack = Stack((Gaussian(0.025), CEMGated(warmup=0), CEMLogDet()))
        _, step, aux = self.step(stack)
        penalty = stack.penalty(step)
        assert penalty is not None
        assert penalty.isfinite()
        assert stack.notes(step.split, aux)["cem-gated"]["penalty"]["first"] > 0


class TestSlot(DefenseContract):
    @pytest.fixture(params=list(DIRECTIONS))
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return CEMSlot(16, warmup=0, form=request.param, settings=SMALL)

    @pytest.fixture
    def neutral(self) -> Defense:
        return CEMSlot(0, warmup=0)


class TestFused(DefenseContract):
    @pytest.fixture(params=["parallel", "shortcut"])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return CEMFused(16, warmup=0, coupling=request.param, settings=SMALL)

    @pytest.fixture
    def neutral(self) -> Defense:
        return CEMFused(0, warmup=0)


def _frozen(batch: int = 60, width: int = 16, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Gaussian classes through a sigmoid, as in the measurement of the specification."""
    rng = seeds.generator(0, "frozen")
    y = torch.arange(batch) % classes
    return (torch.randn(classes, width, generator=rng)[y] + torch.randn(batch, width, generator=rng)).sigmoid(), y


def _step(z: Tensor, y: Tensor, aux: nn.Module, seed: int = 0) -> Step:
    scores = torch.zeros(len(z), 2)
    return Step(
        x=z, y=y, features=z, released=z, scores=scores, task_loss=scores.sum(), split=None,  # type: ignore[arg-type]
        aux=aux, epoch=9, epochs=10, learning_rate=1e-4, rng=seeds.generator(seed, "step"),
    )  # fmt: skip


def _aux(defense: Defense, width: int) -> nn.Module:
    with seeds.ambient(0, "aux"):
        if isinstance(defense, CEMGated):
            return Gates(width, affine=defense.form == "published")
        rng = seeds.generator(0, "slots")
        if isinstance(defense, CEMSlot):
            published = defense.form == "published"
            attention = slot_attention(width, defense.settings, rng, published=published)
            return Slots(attention, Rewriting(width, defense.settings) if published else None)
        assert isinstance(defense, CEMFused)
        return Fusion(width, slot_attention(width, defense.settings, rng, published=False))


def _trained_alone(defense: Any, steps: int, rate: float) -> tuple[list[float], nn.Module]:
    """The penalty while the surrogate's own weights are trained and the features never change."""
    z, y = _frozen()
    aux, values = _aux(defense, z.shape[1]), []
    unused = nn.Parameter(torch.zeros(()))  # an optimiser needs one
    optimizer = torch.optim.SGD([unused, *defense.optimised(aux)], rate, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        penalty = defense.penalty(_step(z, y, aux))
        values.append(penalty.item())
        if penalty.requires_grad:
            penalty.backward()
            optimizer.step()
    return values, aux


def test_the_published_gates_lower_the_penalty_of_frozen_features() -> None:
    """The central defect: the penalty falls and the features have not changed."""
    values, aux = _trained_alone(CEMGated(16, form="published"), 200, 0.05)
    assert values[-1] < 0.5 * values[0]
    assert isinstance(aux, Gates)
    notes = aux.watch.notes()
    assert notes["within_class_variance"]["last"] == pytest.approx(notes["within_class_variance"]["first"], rel=1e-4)
    assert notes["penalty"]["last"] < 0.6 * notes["penalty"]["first"]


def test_the_published_slots_lower_the_penalty_of_frozen_features() -> None:
    values, _ = _trained_alone(CEMSlot(16, form="published", settings=SMALL), 60, 0.05)
    assert values[-1] < 0.5 * values[0]


def test_the_published_slots_keep_silent_at_first_and_where_gates_are_open_wide() -> None:
    z, y = _frozen()
    silent = CEMSlot(16, form="published", settings=SlotSettings(slots=2, rounds=2, silent_calls=3))
    spoken = CEMSlot(16, form="published", settings=SMALL)
    aux, other = _aux(silent, z.shape[1]), _aux(spoken, z.shape[1])
    features = z.clone().requires_grad_()
    values = []
    for _ in range(5):
        penalty = silent.penalty(_step(features, y, aux))
        assert penalty is not None
        assert penalty.requires_grad  # the graph stays connected
        values.append(penalty.item())
        if len(values) == 3:
            assert not torch.autograd.grad(penalty, features)[0].any()
    assert values[:3] == [0, 0, 0]
    expected = spoken.penalty(_step(z, y, other))
    assert expected is not None
    assert values[3:] == pytest.approx([expected.item()] * 2)  # then it is what it would have been from the start
    assert isinstance(aux, Slots)
    assert aux.watch.notes()["penalty"]["first"] > 0

    wide = CEMSlot(16, form="published", settings=SlotSettings(slots=2, rounds=2, silent_calls=0, widest_gate=0.01))
    penalty = wide.penalty(_step(z, y, _aux(wide, z.shape[1])))
    assert penalty is not None
    assert penalty.item() == 0  # sigmoids of untrained gates are near ½, far above 0.01


@pytest.mark.parametrize("form", ["adversarial", "detached"])
@pytest.mark.parametrize(("kind", "extra"), [(CEMGated, {}), (CEMSlot, {"settings": SMALL})])
def test_the_fixed_forms_cannot(kind: Any, extra: dict[str, Any], form: str) -> None:
    values, _ = _trained_alone(kind(16, form=form, **extra), 60, 0.05)
    assert min(values) > 0.98 * values[0]
    if form == "detached":
        assert values[-1] == values[0]


@pytest.mark.parametrize("coupling", ["parallel", "shortcut"])
def test_the_fused_form_cannot(coupling: Any) -> None:
    values, _ = _trained_alone(CEMFused(16, coupling=coupling, settings=SMALL), 60, 0.05)
    assert min(values) > 0.98 * values[0]


@pytest.mark.parametrize("form", list(DIRECTIONS))
def test_gated_is_the_loop_over_classes(form: Any) -> None:
    z, y = _frozen(23, 8, 4)
    z, y = torch.cat([z, z[:1]]), torch.cat([y, torch.tensor([9])])  # a class of one, which is left out
    defense, with_loop, weight = CEMGated(form=form), 0.0, 0.0
    with seeds.ambient(0, "pool"):
        gates = Gates(8, affine=form == "published")
    pool = gates.pool
    got, _ = defense.surrogate(gates, seeds.generator(0, "unused"), z, by_class(y))
    threshold = 0.125 * 0.025**2 + 1e-6
    for c in range(4):
        x = pool.norm(z[y == c])
        alpha = pool.score(pool.value(x).tanh() * pool.gate(x).sigmoid()).softmax(0)
        x = x if form == "published" else z[y == c]
        v = (alpha * (x - (alpha * x).sum(0)) ** 2).sum(0)
        share = len(x) / len(z)
        with_loop += share * (torch.log(v + 1e-6) - torch.log(torch.tensor(threshold))).clamp_min(0).mean().item()
        weight += share
    assert got.item() == pytest.approx(0.1 * with_loop / weight, rel=1e-5)


def test_slot_moments_are_the_loop_over_classes_and_slots() -> None:
    z, y = _frozen(17, 6, 3)
    classes = by_class(y)
    packed = rows(z, classes)
    r = torch.rand(3, packed.values.shape[1], 4, generator=seeds.generator(0, "r")) * packed.mask[..., None]
    mass, mean, variance = slot_moments(packed.values, r)
    for c in range(3):
        own = z[y == c]
        for k in range(4):
            w = r[c, : len(own), k]
            torch.testing.assert_close(mass[c, k], w.sum())
            mu = (w[:, None] * own).sum(0) / w.sum()
            torch.testing.assert_close(mean[c, k], mu, rtol=1e-5, atol=1e-6)
            expected = (w[:, None] * (own - mu) ** 2).sum(0) / w.sum()
            torch.testing.assert_close(variance[c, k], expected, rtol=1e-5, atol=1e-6)


def test_lambda_reaches_the_encoder_and_not_the_gates() -> None:
    z, y = _frozen()
    gradients = []
    for weight in (1.0, 8.0):
        defense, features = CEMGated(weight, form="published"), z.clone().requires_grad_()
        aux = _aux(defense, z.shape[1])
        penalty = defense.penalty(_step(features, y, aux))
        assert penalty is not None
        penalty.backward()
        gradients.append((features.grad, next(aux.parameters()).grad, penalty.detach()))
    (encoder, gates, value), (encoder8, gates8, value8) = gradients
    torch.testing.assert_close(encoder8, 8 * encoder)  # type: ignore[operator]
    torch.testing.assert_close(gates8, gates)
    torch.testing.assert_close(value8, 8 * value)


ALL: list[Defense] = [
    *(CEMGated(form=form) for form in DIRECTIONS),  # type: ignore[arg-type]
    *(CEMSlot(form=form, settings=SMALL) for form in DIRECTIONS),  # type: ignore[arg-type]
    CEMFused(coupling="parallel", settings=SMALL),
    CEMFused(coupling="shortcut", settings=SMALL),
]


@pytest.mark.parametrize("defense", ALL, ids=repr)
@pytest.mark.parametrize(
    ("constant", "labels"),
    [(None, [0, 1, 1, 1, 1, 1]), (None, [0, 1, 2, 3, 4, 4]), (0.3, [0, 0, 0, 1, 1, 1]), (0.0, [0] * 6)],
    ids=["a class of one", "1.2 samples a class", "constant", "zero and one class"],
)
def test_hard_batches_give_finite_values_and_gradients(
    defense: Defense, constant: float | None, labels: list[int]
) -> None:
    z = torch.rand(6, 8, generator=seeds.generator(0, "z")) if constant is None else torch.full((6, 8), constant)
    z.requires_grad_()
    aux = _aux(defense, 8)
    penalty = defense.penalty(_step(z, torch.tensor(labels), aux))
    assert penalty is not None
    assert penalty.isfinite()
    penalty.backward()
    for tensor in (z, *aux.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


def test_warmup_has_no_penalty() -> None:
    z, y = _frozen()
    for defense in (CEMGated(warmup=10), CEMSlot(warmup=10), CEMFused(warmup=10)):
        assert defense.penalty(_step(z, y, nn.Module())) is None


@pytest.mark.parametrize(
    "made",
    [
        lambda: CEMGated(-1),
        lambda: CEMGated(form="free"),  # type: ignore[arg-type]
        lambda: CEMGated(schedule="cosine"),  # type: ignore[arg-type]
        lambda: CEMGated(warmup=-1),
        lambda: CEMSlot(-1),
        lambda: CEMSlot(schedule="cosine"),  # type: ignore[arg-type]
        lambda: SlotSettings(slots=0),
        lambda: SlotSettings(silent_calls=-1),
        lambda: SlotSettings(widest_gate=0),
        lambda: CEMFused(-1),
        lambda: CEMFused(coupling="serial"),  # type: ignore[arg-type]
    ],
)
def test_bad_fields_are_refused(made: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        made()


def test_features_that_slots_cannot_hold_are_one_line() -> None:
    for width, remedy in ((10_000, "bottleneck"), (6, "heads")):
        with pytest.raises(UsageError, match=remedy):
            slot_attention(width, SlotSettings(), seeds.generator(0, "slots"), published=True)
