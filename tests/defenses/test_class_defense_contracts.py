"""The defences of the class-attack and sparse-coding literature pass the shipped contract, and the training loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core.defense import Defense
from leakscope.defenses.bido_coco import BidoCoco
from leakscope.defenses.bido_hsic import BidoHsic
from leakscope.defenses.dp_sgd import DpSgd
from leakscope.defenses.gan_augment import GanAugment
from leakscope.defenses.gong import Gong
from leakscope.defenses.gong_continual import GongContinual
from leakscope.defenses.label_smoothing import LabelSmoothing
from leakscope.defenses.mid import Mid
from leakscope.experiments.training import Training, train
from leakscope.testing import DefenseContract
from leakscope.testing.synthetic import CPU, image_set

from .in_training import check_interrupted, defended, trained, weights


class TestMid(DefenseContract):
    @pytest.fixture(params=[Mid(), Mid(0.1, width=3, at_release=False)], ids=repr)
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        made: Defense = request.param
        return made

    @pytest.fixture
    def neutral(self) -> Defense:
        return Mid(0)


class TestBidoHsic(DefenseContract):
    @pytest.fixture(params=[BidoHsic(), BidoHsic(0.1, 1, layers=("features.0", "rest"))], ids=repr)
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        made: Defense = request.param
        return made

    @pytest.fixture
    def neutral(self) -> Defense:
        return BidoHsic(0, 0)


class TestBidoCoco(DefenseContract):
    @pytest.fixture(params=[BidoCoco(), BidoCoco(norm="spectral")], ids=repr)
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        made: Defense = request.param
        return made

    @pytest.fixture
    def neutral(self) -> Defense:
        return BidoCoco(0, 0)


class TestDpSgd(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return DpSgd()


class TestGanAugment(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return GanAugment(gan_steps=2, gan_width=4)

    @pytest.fixture
    def neutral(self) -> Defense:
        return GanAugment(0)


class TestGong(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return Gong(start=0, inversion_steps=1, gan_steps=2, gan_width=4)

    @pytest.fixture
    def neutral(self) -> Defense:
        return Gong(0)


class TestGongContinual(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return GongContinual(start=0, inversion_steps=1, gan_steps=2, gan_width=4)

    @pytest.fixture
    def neutral(self) -> Defense:
        return GongContinual(0)


class TestLabelSmoothing(DefenseContract):
    @pytest.fixture(params=[LabelSmoothing(), LabelSmoothing(0.2, schedule="constant")], ids=repr)
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        made: Defense = request.param
        return made

    @pytest.fixture
    def neutral(self) -> Defense:
        return LabelSmoothing(0)


SMALL_GAN = {"gan_steps": 2, "gan_width": 4}
NEUTRAL: list[Any] = [
    "mid:0",
    "bido-hsic:0,label_weight=0",
    "bido-coco:0,label_weight=0",
    "gan-augment:0",
    "gong:0",
    {"kind": "gong++", "weight": 0},
    "label-smoothing:0",
]
ACTIVE: list[Any] = [
    "mid",
    "bido-hsic",
    "bido-coco",
    "dp-sgd",
    {"kind": "gan-augment", **SMALL_GAN},
    {"kind": "gong", **SMALL_GAN},
    {"kind": "gong++", **SMALL_GAN},
    "label-smoothing:schedule=constant",
    [{"kind": "gan-augment", **SMALL_GAN}, "mid", "bido-hsic"],
    ["mid", "bido-hsic", {"kind": "gong", **SMALL_GAN}, "gaussian:0.1"],
    ["bottleneck:2", "dp-sgd", "gaussian:0.1"],
]


@pytest.fixture(scope="module")
def undefended() -> torch.Tensor:
    return weights(trained("none")[0])


@pytest.mark.parametrize("spec", NEUTRAL, ids=str)
def test_strength_zero_trains_the_undefended_network_bit_for_bit(spec: Any, undefended: torch.Tensor) -> None:
    split, history, notes = trained(spec)
    assert torch.equal(weights(split), undefended)
    assert history.penalty == [0.0, 0.0]
    assert notes == {}


@pytest.mark.parametrize("spec", ACTIVE, ids=str)
def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undefended: torch.Tensor
) -> None:
    whole = check_interrupted(spec, tmp_path, monkeypatch, undefended)
    hooks = [module for module in whole.modules() if module._forward_hooks or module._backward_hooks]
    assert not hooks, "a defence left its hooks on the network"
    assert all(not hasattr(p, "grad_sample") for p in whole.parameters())


@pytest.mark.parametrize("spec", [spec for spec in ACTIVE if isinstance(spec, str | dict)], ids=str)
def test_mixed_precision_trains(spec: Any) -> None:
    penalties = []
    for mixed in (False, True):
        training = Training(epochs=2, batch=24, optimizer="sgd", learning_rate=1e-4, mixed_precision=mixed)
        split, history, _ = train(defended(spec), image_set(24, "private"), training, seed=0, device=CPU)
        assert weights(split).isfinite().all()
        penalties.append(history.penalty)
    assert penalties[1] == pytest.approx(penalties[0], rel=0.1, abs=0.05)
