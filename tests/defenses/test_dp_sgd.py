"""DP-SGD against gradients taken picture by picture, and its accounting against a closed form."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Step, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses import dp_sgd
from leakscope.defenses.dp_sgd import DpSgd
from leakscope.experiments.training import Training, train
from leakscope.models.convnet import ConvNet
from leakscope.testing.synthetic import CPU, image_set, small_split

pytest.importorskip("opacus")


def _split(data: ImageSet, defense: DpSgd) -> SplitModel:
    with seeds.ambient(0, "dp"):
        split = SplitModel(ConvNet((4, 8)).build(data.shape, 3), "features.3", defense=defense)
        return defense.rebuild(split, data.images[:2]).train()


def _step(split: SplitModel, defense: DpSgd, data: ImageSet, batch: int, seed: int = 0) -> Step:
    aux = defense.setup(split, data, seeds.generator(0, "s"))
    defense.before_epoch(split, aux, data, 0)
    x, y = data.images[:batch], data.labels[:batch]
    out = split.run(x)
    return Step(
        x, y, out.features, out.released, out.scores, F.cross_entropy(out.scores, y), split, aux, 0, 1, 0.1,
        seeds.generator(seed, "step"),
    )  # fmt: skip


def _one_by_one(split: SplitModel, data: ImageSet, drawn: list[int], clip: float) -> list[Tensor]:
    total = [torch.zeros_like(p) for p in split.parameters()]
    for i in drawn:
        loss = F.cross_entropy(split(data.images[i : i + 1]), data.labels[i : i + 1])
        gradient = torch.autograd.grad(loss, list(split.parameters()))
        norm = math.sqrt(sum(g.square().sum().item() for g in gradient))
        for own, g in zip(total, gradient, strict=True):
            own += g * min(1.0, clip / norm)
    return total


@pytest.mark.parametrize("clip", [0.05, 1e6])
@pytest.mark.parametrize("room", [2**26, 6000])  # one pass, and several
def test_gradients_are_those_of_each_picture_clipped_and_summed(
    clip: float, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_sgd, "_LARGEST", room)
    data, defense = image_set(20, "dp"), DpSgd(noise=0, clip=clip)
    split = _split(data, defense)
    step = _step(split, defense, data, 10)
    drawn = (torch.rand(20, generator=seeds.generator(0, "step")) < 0.5).nonzero().flatten().tolist()
    assert 4 < len(drawn) < 16
    expected = _one_by_one(split, data, drawn, clip)
    defense.backward(step.task_loss, step)
    for p, own in zip(split.parameters(), expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, own / 10, rtol=1e-4, atol=1e-6)
    if clip > 1:  # nothing clipped, everything drawn: the plain gradient of the batch
        step = _step(split, defense, data, 20)
        defense.backward(step.task_loss, step)
        plain = torch.autograd.grad(F.cross_entropy(split(data.images), data.labels), list(split.parameters()))
        for p, g in zip(split.parameters(), plain, strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-6)


class _Rows(nn.Module):
    """Linear layers on rows, few wide and many narrow ones; one that runs twice; one without bias; one tied pair."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.narrow, self.twice = nn.Linear(16, 4), nn.Linear(4, 4)
        self.wide = nn.Linear(3 * 16 * 4, 40, bias=False)
        self.tied, self.also = nn.Linear(40, 40), nn.Linear(40, 40)
        self.also.weight = self.tied.weight
        self.few = nn.Linear(20, 30)
        self.last = nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.narrow(torch.tanh(self.conv(x))))
        z = torch.tanh(self.twice(torch.tanh(self.twice(z))))
        z = torch.tanh(self.wide(z.flatten(1)))
        z = torch.tanh(self.also(torch.tanh(self.tied(z))))
        return torch.as_tensor(self.last(torch.tanh(self.few(z.view(-1, 2, 20))).flatten(1)))


def test_norms_of_linear_layers_follow_without_their_gradients() -> None:
    data, defense = image_set(12, "rows", (1, 16, 16)), DpSgd(noise=0, clip=0.05)
    with seeds.ambient(0, "dp"):
        split = defense.rebuild(SplitModel(_Rows(), "conv", defense=defense), data.images[:2]).train()
    listed = {name for name, layer in split.model.named_modules() if layer in dp_sgd.Linears(split.model).layers}
    assert listed == {"narrow", "twice", "wide", "few", "last"}
    step = _step(split, defense, data, 12)
    expected = _one_by_one(split, data, list(range(12)), 0.05)
    defense.backward(step.task_loss, step)
    for (name, p), own in zip(split.named_parameters(), expected, strict=True):
        assert p.grad is not None, name
        assert own.abs().max() > 0, name
        torch.testing.assert_close(p.grad, own / 12, rtol=1e-4, atol=1e-6)
        assert p.requires_grad
        assert getattr(p, "grad_sample", None) is None


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_squares_of_a_linear_layer(rows: int) -> None:
    rng = torch.Generator().manual_seed(rows)
    layer, a, g = nn.Linear(7, 5), torch.randn(9, rows, 7, generator=rng), torch.randn(9, rows, 5, generator=rng)
    expected = torch.einsum("nto,ntd->nod", g, a).square().sum((1, 2)) + g.sum(1).square().sum(1)
    torch.testing.assert_close(dp_sgd.squares_of(layer, a, g), expected)


def test_noise_has_the_stated_size_and_comes_from_the_generator() -> None:
    data = image_set(20, "dp")
    found = []
    for noise, seed in ((0.0, 0), (3.0, 0), (3.0, 0), (3.0, 1)):
        defense = DpSgd(noise=noise, clip=0.5)
        split = _split(data, defense)
        step = _step(split, defense, data, 20, seed)  # q = 1: all are drawn
        ambient = torch.random.get_rng_state()
        defense.backward(step.task_loss, step)
        assert torch.equal(ambient, torch.random.get_rng_state())
        found.append(torch.cat([p.grad.flatten() for p in split.parameters() if p.grad is not None]))
    assert torch.equal(found[1], found[2])
    assert not torch.equal(found[1], found[3])
    added = (found[1] - found[0]) * 20
    # The standard deviation of n draws is known to 1/√(2n): five of those.
    assert added.std().item() == pytest.approx(1.5, rel=5 / math.sqrt(2 * len(added)))


def test_epsilon_is_that_of_the_gaussian_mechanism() -> None:
    """With every picture in every batch, T steps are one Gaussian mechanism with noise σ/√T."""
    defense = DpSgd(noise=4.0, delta=1e-5)
    steps, sigma = 10, 4.0

    def delta(epsilon: float) -> float:
        """Balle and Wang, "Improving the Gaussian mechanism", 2018, theorem 8."""
        mu = math.sqrt(steps) / sigma
        phi = NormalDist().cdf
        return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)

    epsilon = defense.epsilon(1.0, steps)
    assert epsilon is not None
    assert delta(epsilon) <= 1e-5  # a valid bound …
    assert delta(0.75 * epsilon) > 1e-5  # … and not a loose one
    assert DpSgd(noise=0).epsilon(0.1, 5) is None
    less = defense.epsilon(0.1, steps)
    assert less is not None
    assert less < epsilon / 3


def test_the_notes_give_the_budget_and_the_warning() -> None:
    data, defense = image_set(24, "dp"), DpSgd(noise=2.0)
    split, _, notes = train(_split(data, defense), data, Training(epochs=2, batch=8), seed=0, device=CPU)
    assert notes["steps"] == 6
    assert notes["sample_rate"] == pytest.approx(1 / 3)
    assert notes["epsilon"] == pytest.approx(defense.epsilon(1 / 3, 6))
    assert notes["delta"] == 1e-5
    assert "not hidden" in notes["warning"]
    assert notes["group_normalisations"] == 2
    assert all(not vars(module).get("activations") for module in split.modules())


def test_batch_normalisation_becomes_group_normalisation_with_its_scale() -> None:
    data = image_set(4, "dp")
    with seeds.ambient(0, "dp"):
        norm = nn.BatchNorm2d(8)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3), norm, nn.ReLU(inplace=True), nn.Flatten(),
            nn.Linear(8 * 14 * 14, 6), nn.BatchNorm1d(6), nn.Linear(6, 3),
        )  # fmt: skip
    with torch.no_grad():
        norm.weight.fill_(2.0)
    split = DpSgd().rebuild(SplitModel(model, "2").eval(), data.images)
    assert isinstance(model[1], nn.BatchNorm2d)  # the network it was made from is untouched
    assert model[2].inplace
    maps, flat = split.model.get_submodule("1"), split.model.get_submodule("5")
    assert isinstance(maps, nn.GroupNorm)
    assert maps.num_groups == 4
    assert (maps.weight == 2).all()
    assert isinstance(flat, nn.GroupNorm)
    assert flat.num_groups == 1
    with torch.no_grad():
        alone = torch.cat([split(x[None]) for x in data.images])
        torch.testing.assert_close(split.train()(data.images), alone)  # no picture depends on another


def test_what_cannot_be_done_is_said_in_one_line() -> None:
    data = image_set(12, "dp")
    defense = build_defense("dp-sgd+nopeek")
    split = defense.rebuild(small_split(), data.images)
    split.defense = defense
    with pytest.raises(UsageError, match="cannot be stacked with a penalty"):
        train(split, data, Training(epochs=1, batch=6), seed=0, device=CPU)
    recorded = nn.Sequential(
        nn.Flatten(2), nn.Unflatten(1, (1,)), nn.InstanceNorm2d(1, affine=True, track_running_stats=True)
    )
    with pytest.raises(UsageError, match="no per-sample gradients"):
        DpSgd().rebuild(SplitModel(recorded, "0"), data.images)
    for fields in ({"noise": -1}, {"clip": 0}, {"delta": 0}, {"delta": 1.0}):
        with pytest.raises(ValueError, match=r"must be|probability"):
            DpSgd(**fields)


def test_an_empty_batch_is_noise_alone() -> None:
    data, defense = image_set(600, "dp"), DpSgd(noise=1.0, clip=2.0)

    def draws_none(seed: int) -> bool:
        return bool((torch.rand(600, generator=seeds.generator(seed, "step")) >= 2 / 600).all())

    split = small_split()
    step = _step(split, defense, data, 2, seed=next(filter(draws_none, range(100))))
    defense.backward(step.task_loss, step)
    found = torch.cat([p.grad.flatten() for p in split.parameters() if p.grad is not None])
    assert found.std().item() == pytest.approx(1.0, rel=5 / math.sqrt(2 * len(found)))  # σ C over the batch size of 2
