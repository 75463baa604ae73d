"""Defences at the cut on hard batches and wrong settings: defined behaviour, or one line before training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Step, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.experiments.training import Training, train
from leakscope.testing.synthetic import CPU, SHAPE, smooth_images

#: Every defence at the cut, at once active: no warm-up, and more clusters or slots than a class has samples.
ACTIVE = [
    "cem:clusters=7",
    "cem:clusters=7,two_stage=true",
    "cem-logdet:clusters=7",
    "cem-logdet:clusters=1",
    "cem-gated:warmup=0",
    "cem-gated:warmup=0,form=published",
    "cem-gated:warmup=0,form=detached",
    "cem-slot:warmup=0",
    "cem-slot:warmup=0,form=published",
    "cem-slot:warmup=0,form=detached",
    "cem-fused:warmup=0",
    "cem-fused:warmup=0,coupling=shortcut",
    "mixcon",
    "mixcon:beta=0",
    "unicon",
    "nopeek",
    "adversarial:threshold=0,width=8,blocks=0,steps=1",
    "adversarial:threshold=0,width=8,blocks=0,steps=1,loss=mse",
    "tied-sparse",
    "patrol:share=0.5,above=1,at=0.4",
]
WEIGHTED = ["cem", "cem-logdet", "cem-gated", "cem-slot", "cem-fused", "mixcon", "unicon", "nopeek", "adversarial"]
SCHEDULED = ["cem", "cem-logdet", "cem-gated", "cem-slot", "cem-fused"]


class Net(nn.Module):
    """A convolution to the cut, and a linear head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Conv2d(SHAPE[0], 4, 3, stride=4, padding=1)  # 4×4×4
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))
        return scores


def _split(spec: str | Defense, classes: int, prepare: Callable[[Net], None] = lambda net: None) -> SplitModel:
    defense = build_defense(spec)
    with seeds.ambient(0, "bad-input"):
        net = Net(classes)
        prepare(net)
        split = defense.rebuild(SplitModel(net, "features").eval(), torch.zeros(2, *SHAPE))
    split.defense = defense
    return split


def _data(labels: list[int], classes: int, images: Tensor | None = None) -> ImageSet:
    pictures = smooth_images(len(labels), "bad-input") if images is None else images
    return ImageSet(pictures, torch.tensor(labels), tuple(str(number) for number in range(classes)))


def _trained(
    spec: str | Defense, data: ImageSet, prepare: Callable[[Net], None] = lambda net: None, **settings: Any
) -> Any:
    training = Training(**{"epochs": 3, "batch": 128, "optimizer": "sgd", "learning_rate": 1e-3, **settings})
    split, history, notes = train(_split(spec, len(data.classes), prepare), data, training, seed=0, device=CPU)
    assert all(p.isfinite().all() for p in split.parameters())
    assert torch.tensor(history.penalty).isfinite().all()
    return history, notes


def _constant(net: Net) -> None:
    """Features that are the same for every picture, and not zero."""
    nn.init.zeros_(net.features.weight)
    nn.init.constant_(net.features.bias, 0.7)  # type: ignore[arg-type]


def _dead(net: Net) -> None:
    nn.init.zeros_(net.features.weight)
    nn.init.zeros_(net.features.bias)  # type: ignore[arg-type]


LABELS: dict[str, tuple[list[int], int]] = {
    "a class with one sample": ([0] * 8 + [1] * 7 + [2], 3),
    "every class once": (list(range(12)), 12),
    "one class only": ([1] * 10, 3),
    "a class without samples": ([0, 2] * 6, 4),
    "two samples of a class": ([0, 0, 1, 1, 2, 2], 3),
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("spec", ACTIVE)
def test_classes_smaller_than_the_method_wants(spec: str, labels: str) -> None:
    values, classes = LABELS[labels]
    _trained(spec, _data(values, classes), batch=len(values))


@pytest.mark.parametrize("spec", ACTIVE)
def test_a_hundred_classes_in_a_batch_of_128(spec: str) -> None:
    """CIFAR-100: 1.3 samples of a class in a batch."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(100, (256,), generator=rng).tolist()
    _trained(spec, _data(labels, 100), epochs=2)


def test_running_moments_act_where_moments_of_a_batch_cannot() -> None:
    """One sample of a class at a time: cem-logdet still sees its variance; in-batch forms have nothing to say."""
    batches = [_data(list(range(16)), 16, smooth_images(32, "bad-input")[part::2]) for part in (0, 1)]
    for spec, acts in (("cem-logdet:clusters=1", True), ("cem-gated:warmup=0", False), ("unicon", False)):
        defense, step = _step(spec, batches[0])
        defense.penalty(step)
        penalty = defense.penalty(replace(_step(spec, batches[1])[1], aux=step.aux))
        assert penalty is not None
        assert (penalty.item() > 1e-6) == acts


@pytest.mark.parametrize("prepare", [_constant, _dead], ids=["constant", "zero"])
@pytest.mark.parametrize("spec", ACTIVE)
def test_constant_features(spec: str, prepare: Callable[[Net], None]) -> None:
    _trained(spec, _data([0, 1, 2] * 6, 3), prepare, batch=18)


@pytest.mark.parametrize("spec", ACTIVE)
def test_the_same_picture_everywhere(spec: str) -> None:
    images = torch.full((18, *SHAPE), 0.5)
    _trained(spec, _data([0, 1, 2] * 6, 3, images), batch=18)


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("weight", ["-1", "-1e-9", ".nan", ".inf"])
def test_a_weight_below_zero_or_not_a_number_is_one_line(name: str, weight: str) -> None:
    with pytest.raises(UsageError, match="weight must be 0") as caught:
        build_defense(f"{name}:{weight}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SCHEDULED)
def test_an_unknown_schedule_is_one_line(name: str) -> None:
    with pytest.raises(UsageError, match="schedule") as caught:
        build_defense(f"{name}:schedule=cosine")
    assert "\n" not in str(caught.value)
    assert "inverse-rate" in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "cem:clusters=0", "cem:sigma=0", "cem:sigma=.nan", "cem-logdet:clusters=0", "cem-logdet:memory=1",
        "cem-gated:rho=0", "cem-gated:form=free", "cem-slot:settings={slots: 0}", "cem-slot:warmup=-1",
        "cem-fused:coupling=serial", "mixcon:beta=-1", "mixcon:epsilon=0", "adversarial:steps=0",
        "adversarial:threshold=1", "tied-sparse:threshold=-1", "tied-sparse:atoms=0", "patrol:share=-0.1",
        "patrol:share=1", "patrol:at=2",
    ],
)  # fmt: skip
def test_other_wrong_settings_are_one_line(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_defense(spec)
    assert "\n" not in str(caught.value)


def _step(spec: str | Defense, data: ImageSet) -> tuple[Defense, Step]:
    split = _split(spec, len(data.classes))
    defense = split.defense
    aux = defense.setup(split, data, seeds.generator(0, "setup"))
    rng = seeds.generator(0, "step")
    out = split.train().run(data.images, rng)
    task = nn.functional.cross_entropy(out.scores, data.labels)
    return defense, Step(
        data.images, data.labels, out.features, out.released, out.scores, task, split, aux, 0, 1, 0.1, rng
    )  # fmt: skip


@pytest.mark.parametrize("spec", ["none", *ACTIVE])
def test_pictures_that_are_not_finite_stop_training(spec: str) -> None:
    images = smooth_images(12, "bad-input").clone()
    images[3, 0, 4, 4] = torch.nan
    with pytest.raises(UsageError, match="training diverged") as caught:
        _trained(spec, _data([0, 1, 2] * 4, 3, images), batch=12)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class RootAtZero(Defense):
    """A penalty with the value 0 and the gradient of √0."""

    def penalty(self, step: Step) -> Tensor:
        return (step.features * 0).sum().sqrt()


def test_a_finite_loss_with_an_infinite_gradient_never_reaches_the_weights() -> None:
    data = _data([0, 1, 2] * 4, 3)
    split = _split(RootAtZero(), 3)
    before = {name: tensor.clone() for name, tensor in split.state_dict().items()}
    with pytest.raises(UsageError, match="a gradient is not finite in epoch 1, batch 1"):
        train(split, data, Training(epochs=1, batch=12), seed=0, device=CPU)
    assert all(torch.equal(tensor, before[name]) for name, tensor in split.state_dict().items())
