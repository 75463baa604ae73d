"""Sparse layers in place of convolutions: what stays, what learns, what is remembered, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._sparse_layers import Memory, PlacedCoding, placed
from leakscope.defenses.sca import Sca
from leakscope.defenses.sca_conv import ScaConv
from leakscope.defenses.sparse_standard import SparseStandard
from leakscope.experiments.training import Training, train
from leakscope.models.sca_net import ScaConvNet, ScaNet
from leakscope.sparse import Diverged, solve
from leakscope.testing import DefenseContract
from leakscope.testing.synthetic import image_set

SMALL = ScaNet(channels=(4, 6), kernel=3, rows=(5,), dense=(8,))
CPU = torch.device("cpu")


class TestSca(DefenseContract):
    @pytest.fixture(params=[False, True])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return Sca(0.2, backprop=request.param)


class TestSparseStandard(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return SparseStandard(0.2)


class TestScaConv(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return ScaConv(0.2, layers=("features.0",))


def built(defense: Defense, cut: str = "relu1", network: Any = SMALL, side: int = 8) -> tuple[SplitModel, ImageSet]:
    data = image_set(48, "sparse", (1, side, side))
    with seeds.ambient(0, "sparse"):
        split = SplitModel(network.build(data.shape, 3), cut, defense=defense).eval()
        return defense.rebuild(split, data.images[:2]), data


def test_the_first_two_convolutions_become_sparse_and_everything_else_stays() -> None:
    split, data = built(Sca())
    assert set(placed(split)) == {"conv1", "conv2"}
    assert split.cut == "relu1"
    twin, _ = built(build_defense("none"))
    assert split.encode(data.images[:2]).shape == twin.encode(data.images[:2]).shape
    for name in ("norm1.weight", "fc1.weight", "output.bias"):
        assert torch.equal(split.model.get_parameter(name), twin.model.get_parameter(name))


def test_sparse_standard_exchanges_one_and_names_choose_others() -> None:
    assert set(placed(built(SparseStandard())[0])) == {"conv1"}
    assert set(placed(built(Sca(layers=("conv2",)))[0])) == {"conv2"}


def test_codes_are_those_of_the_solver_and_not_negative() -> None:
    split, data = built(Sca(0.3))
    layer = placed(split)["conv1"]
    with torch.no_grad():
        codes = layer(data.images[:4])
    expected = solve(layer.prepare(data.images[:4]), layer.dictionary, **layer.terms).codes
    assert torch.equal(codes, expected)
    assert (codes >= 0).all()
    assert 0 < float((codes > 0).float().mean()) < 0.6


def test_the_first_dictionary_is_fixed_and_the_second_learns_to_rebuild() -> None:
    split, data = built(Sca(0.1, update=0.1))
    before = {name: layer.dictionary.clone() for name, layer in placed(split).items()}
    split, _, notes = train(split, data, Training(epochs=2, batch=16), seed=0, device=CPU)
    after = {name: layer.dictionary for name, layer in placed(split).items()}
    assert torch.equal(after["conv1"], before["conv1"])
    assert not torch.equal(after["conv2"], before["conv2"])
    norms = after["conv2"].flatten(1).norm(dim=1)
    assert torch.allclose(norms, torch.ones_like(norms), atol=1e-5)
    for coded in notes["sparse_layers"].values():
        assert 0 < coded["density"] < 1
    assert all(layer.memory is None and layer.batch is None for layer in placed(split).values())


def test_no_update_leaves_every_dictionary_alone() -> None:
    split, data = built(Sca(update=0.0, backprop=False))
    before = [layer.dictionary.clone() for layer in placed(split).values()]
    split, _, _ = train(split, data, Training(epochs=1, batch=16), seed=0, device=CPU)
    assert all(torch.equal(a, layer.dictionary) for a, layer in zip(before, placed(split).values(), strict=True))


def test_gradients_train_the_second_dictionary_and_the_norm_before_it_unless_left_out() -> None:
    assert Sca().backprop  # footnote 3 of the paper
    assert build_defense("sca-conv") == ScaConv(backprop=True)
    for backprop in (False, True):
        split, data = built(Sca(0.1, update=0.0, backprop=backprop))
        before = split.model.get_parameter("conv2.dictionary").clone()
        norm = split.model.get_parameter("norm1.bias").clone()
        split, _, _ = train(split, data, Training(epochs=1, batch=16), seed=0, device=CPU)
        assert torch.equal(before, split.model.get_parameter("conv2.dictionary")) != backprop
        assert torch.equal(norm, split.model.get_parameter("norm1.bias")) != backprop


def test_remembered_codes_are_bit_for_bit_those_of_the_solver() -> None:
    layer = PlacedCoding(1, 4, 3, penalty=0.2, learns=False, generator=seeds.generator(0, "layer"))
    x = image_set(6, "memory", (1, 8, 8)).images
    with torch.no_grad():
        fresh = layer.eval()(x)
        layer.memory = Memory(6)
        layer.train()
        first, again = layer(x), layer(x[[4, 1, 1, 0]])
    assert torch.equal(first, fresh)
    assert torch.equal(again, fresh[[4, 1, 1, 0]])
    assert len(layer.memory.entries) == 6


def test_memory_is_used_in_later_epochs_and_stops_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    original = PlacedCoding._remembered

    def counted(self: PlacedCoding, x: Tensor, memory: Memory) -> Tensor:
        before = len(memory.entries)
        codes = original(self, x, memory)
        solved.append(len(memory.entries) - before)
        return codes

    monkeypatch.setattr(PlacedCoding, "_remembered", counted)
    split, data = built(Sca())
    train(split, data, Training(epochs=3, batch=16), seed=0, device=CPU)
    assert sum(solved) == 48
    assert solved[3:] == [0] * 6
    solved.clear()
    split, data = built(Sca())
    train(split, data, Training(epochs=2, batch=16, augment=True), seed=0, device=CPU)
    assert sum(solved) <= 48


def test_a_server_is_asked_about_other_features_without_solving_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same scores as from fresh codes, and one solve per layer for as long as pictures and dictionaries stay."""
    from leakscope.sparse import layer as module

    solves: list[int] = []

    def counted(x: Tensor, *args: Any, **options: Any) -> Any:
        solves.append(len(x))
        return solve(x, *args, **options)

    monkeypatch.setattr(module, "solve", counted)
    split, data = built(Sca())
    split.eval()
    pictures = data.images[:4]
    with torch.no_grad():
        features = split.encode(pictures)
        first, other = split.decide(features, pictures), split.decide(features.flip(0), pictures)
        assert len(solves) == 2
        torch.testing.assert_close(other, first.flip(0))
        assert torch.equal(split.encode(pictures), features)
        assert len(solves) == 2
        changed = split.encode(data.images[4:8])
        assert len(solves) == 4
        assert torch.equal(split.encode(pictures), features)
        assert not torch.equal(changed, features)
        for layer in placed(split).values():
            layer.dictionary.copy_(layer.dictionary.flip(0))
        before = len(solves)
        assert not torch.equal(split.encode(pictures), features)
        assert len(solves) > before
    split.encode(pictures.requires_grad_()).sum().backward()  # a gradient asks for a solve of its own
    assert pictures.grad is not None


def test_a_convolution_that_does_not_read_pictures_gets_no_memory() -> None:
    split, data = built(Sca(layers=("conv2",)))
    split.defense.setup(split, data, seeds.generator(0, "setup"))
    assert placed(split)["conv2"].memory is None


def test_an_attacker_can_differentiate_through_both_layers() -> None:
    split, data = built(Sca(0.1))
    x = data.images[:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(split.encode(x).square().sum(), x)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def test_colour_pictures_keep_a_convolutional_tail() -> None:
    network = ScaConvNet(channels=(4, 6, 8), kernel=3, hidden=8)
    split, _ = built(ScaConv(0.2), "norm2", network)
    assert set(placed(split)) == {"conv1", "conv2"}
    assert isinstance(split.model.get_submodule("conv3"), nn.Conv2d)
    with pytest.raises(UsageError, match="take sca"):
        built(ScaConv())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sca:sparsity=-1", "0 or more"),
        ("sca:sparsity=.nan", "0 or more"),
        ("sca:kernel=4", "odd"),
        ("sca:update=-0.1", "rate"),
        ("sca:layers=[conv1,conv1]", "twice"),
    ],
)
def test_bad_settings_are_one_line(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_defense(spec)
    assert "\n" not in str(caught.value)


def test_layers_that_cannot_be_exchanged_are_one_line() -> None:
    with pytest.raises(UsageError, match="unknown convolution 'conv9'"):
        built(Sca(layers=("conv9",)))
    data = image_set(4, "refused")
    cases = [
        (nn.Sequential(nn.Conv2d(1, 4, 4, padding=1), nn.Conv2d(4, 4, 3)), "even side"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)), "pad by half"),
        (nn.Sequential(nn.Conv2d(1, 4, 3, stride=5, padding=1), nn.Conv2d(4, 4, 1)), "stride"),
        (nn.Sequential(nn.Conv2d(1, 4, 3, dilation=2, padding=2), nn.Conv2d(4, 4, 1)), "dilation"),
        (nn.Sequential(nn.Flatten()), "has 0"),
    ]
    for body, message in cases:
        model = nn.Sequential(body, nn.Flatten(), nn.LazyLinear(3))
        model(data.images[:2])
        with pytest.raises(UsageError, match=message) as caught:
            Sca().rebuild(SplitModel(model, "0").eval(), data.images[:2])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_constant_pictures_have_the_zero_code_and_train(value: float) -> None:
    split, data = built(Sca())
    flat = ImageSet(torch.full_like(data.images, value), data.labels, data.classes)
    assert not placed(split)["conv1"].eval()(flat.images[:2]).any()
    split, _, _ = train(split, flat, Training(epochs=1, batch=16), seed=0, device=CPU)
    assert split(flat.images[:2]).isfinite().all()


def test_pictures_that_are_not_numbers_stop_the_run_with_their_index() -> None:
    split, data = built(Sca())
    images = data.images.clone()
    images[:, 0, 2, 2] = float("nan")
    with pytest.raises(UsageError, match="batch index 0 holds NaN"):
        train(split, ImageSet(images, data.labels, data.classes), Training(epochs=1, batch=16), seed=0, device=CPU)


def test_an_objective_that_is_not_finite_stops_the_run_with_its_index() -> None:
    split, data = built(Sca(standardize=False))
    images = data.images[:4].clone()
    images[2] *= 1e30
    with pytest.raises(Diverged, match="batch index 2"):
        split.encode(images)


def test_half_precision_is_refused_in_one_line() -> None:
    split, data = built(Sca())
    with pytest.raises(UsageError, match="float32 or float64"):
        split.half().encode(data.images[:2].half())
