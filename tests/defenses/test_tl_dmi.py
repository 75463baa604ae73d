"""TL-DMI: what is frozen, what frozen means, and the parameter counts of the paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from leakscope.core import seeds
from leakscope.core.compat import ensure_torchvision
from leakscope.core.defense import Defense, build_defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses.tl_dmi import PUBLISHED, TlDmi
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import make_plan
from leakscope.experiments.training import Training, train
from leakscope.models.convnet import ConvNet
from leakscope.models.ir import IRArchitecture
from leakscope.models.vgg16 import VGG16
from leakscope.testing import DefenseContract
from leakscope.testing.synthetic import CPU, image_set

TRAINING = Training(epochs=2, batch=8)


class TestTlDmi(DefenseContract):
    @pytest.fixture(
        params=[TlDmi("features.0"), TlDmi(share=0.5, bn="train"), TlDmi("features.0", tuned="first")], ids=repr
    )
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        made: Defense = request.param
        return made

    @pytest.fixture
    def neutral(self) -> Defense:
        return TlDmi(share=0)


def _split(defense: Defense, widths: tuple[int, ...] = (4, 8)) -> SplitModel:
    with seeds.ambient(0, "tl"):
        return SplitModel(ConvNet(widths).build((1, 16, 16), 3), "features.3", defense=defense)


def test_layers_are_frozen_by_name_up_to_and_including_it() -> None:
    assert TlDmi("features.0").trainable(_split(Defense())) == {
        "model.features.1.weight", "model.features.1.bias", "model.features.4.weight",
        "model.features.5.weight", "model.features.5.bias", "model.head.1.weight", "model.head.1.bias",
    }  # fmt: skip
    # A layer without parameters, and one with parts.
    assert TlDmi("features.3").trainable(_split(Defense())) == TlDmi("features.2").trainable(_split(Defense()))
    assert TlDmi("features").trainable(_split(Defense())) == {"model.head.1.weight", "model.head.1.bias"}


def test_layers_are_frozen_by_share_of_parameters() -> None:
    """Counts in order: 36, 8, 288, 16, 387 of 735."""
    split = _split(Defense())
    sizes = {name: p.numel() for name, p in split.named_parameters()}
    assert sum(sizes.values()) == 735
    for share, left in ((0, 735), (0.04, 735), (0.05, 699), (0.06, 691), (0.46, 403), (0.48, 387), (0.999, 387)):
        assert sum(sizes[name] for name in TlDmi(share=share).trainable(split)) == left, share


def test_the_control_trains_the_first_layers_and_the_scores() -> None:
    assert TlDmi("features.1", tuned="first").trainable(_split(Defense())) == {
        "model.features.0.weight", "model.features.1.weight", "model.features.1.bias",
        "model.head.1.weight", "model.head.1.bias",
    }  # fmt: skip


@pytest.mark.parametrize("bn", ["eval", "train"])
def test_frozen_weights_never_move_and_strict_statistics_do_not_either(bn: str) -> None:
    defense = build_defense(f"tl-dmi:features.3,bn={bn}")
    split = _split(defense)
    before = {name: value.clone() for name, value in split.state_dict().items()}
    split, _, notes = train(split, image_set(24, "private"), TRAINING, seed=0, device=CPU)
    moved = {name for name, value in split.state_dict().items() if not torch.equal(value, before[name])}
    statistics = {f"model.features.1.{s}" for s in ("running_mean", "running_var", "num_batches_tracked")}
    assert "model.features.0.weight" not in moved
    assert "model.features.1.weight" not in moved
    assert {"model.features.4.weight", "model.head.1.weight", "model.features.5.running_mean"} <= moved
    assert (statistics & moved == set()) == (bn == "eval")
    assert notes == {"trained_parameters": 691, "parameters": 735}


def test_strict_features_at_a_frozen_cut_are_a_fixed_function() -> None:
    defense = TlDmi("features.3")
    split, data = _split(defense), image_set(24, "private")
    before = split.eval().encode(data.images)
    split, _, _ = train(split, data, TRAINING, seed=0, device=CPU)
    assert torch.equal(split.eval().encode(data.images), before)


def test_share_zero_trains_the_undefended_network_bit_for_bit() -> None:
    data = image_set(24, "private")
    states = [train(_split(d), data, TRAINING, seed=0, device=CPU)[0].state_dict() for d in (Defense(), TlDmi(share=0))]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_with_bido_the_penalty_is_on_unfrozen_layers_only() -> None:
    data = image_set(24, "private")
    stack = build_defense("tl-dmi:features.3+bido-hsic:0.05,label_weight=0.4")
    alone = build_defense(["tl-dmi:features.3", {"kind": "bido-hsic", "label_weight": 0.4, "layers": ["features.7"]}])
    found = []
    for defense in (stack, alone):
        split, history, notes = train(_split(defense), data, TRAINING, seed=0, device=CPU)
        assert notes["bido-hsic"] == {"layers": ["features.7"]}
        found.append((history.penalty, [p.clone() for p in split.parameters()]))
    assert found[0][0] == found[1][0]
    assert found[0][0][0] != 0
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def _torchvision(name: str, **options: object) -> nn.Module:
    from torchvision import models

    model: nn.Module = models.get_model(name, weights=None, **options)
    return model


def _resnest(classes: int) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model("resnest101e", num_classes=classes)
    return model


def _vmi_resnet34(classes: int) -> nn.Module:
    """As VMI has it: an embedding of 50 numbers in front of the scores."""
    model = _torchvision("resnet34")
    model.fc = nn.Sequential(nn.Linear(512, 50), nn.Linear(50, classes))
    return model


#: How to build each of the nine architectures of the paper, and its millions of parameters. As published: VGG16,
#: ResNet-18, MaxViT, IR-152, FaceNet64. Not published: ResNet-50 and ResNet-101 (torchvision's counts for the heads
#: that the trained parts fit). ResNeSt-101: the paper prints 48.4, timm builds 48.28. ResNet-34: the paper prints 21.5,
#: which no head fits that also gives its 21.14 trained; 21.36 is the count for the network whose trained part fits.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "vgg16": (lambda: VGG16().build((3, 64, 64), 1000), 16.8),
    "resnet18": (lambda: _torchvision("resnet18"), 11.7),
    "resnet101": (lambda: _torchvision("resnet101", num_classes=530), 43.6),
    "resnet34": (lambda: _vmi_resnet34(1000), 21.36),
    "resnet50": (lambda: _torchvision("resnet50", num_classes=8631), 41.2),
    "maxvit": (lambda: _torchvision("maxvit_t", input_size=(224, 224)), 30.9),
    "resnest101": (lambda: _resnest(1000), 48.3),
    "ir152": (lambda: IRArchitecture(152).build((3, 64, 64), 1000), 62.6),
    "facenet64": (lambda: IRArchitecture(50).build((3, 64, 64), 1000), 35.4),
}


def test_every_published_row_has_a_network() -> None:
    assert len(NETWORKS) == 9
    assert {row.split("-")[0] for row in PUBLISHED} == set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_parameter_counts_are_those_of_the_paper(name: str) -> None:
    ensure_torchvision()
    make, whole = NETWORKS[name]
    with torch.device("meta"):
        model = make()
    split = SplitModel(model, next(n for n, _ in model.named_modules() if n))
    sizes = {key: p.numel() / 1e6 for key, p in split.named_parameters()}
    assert sum(sizes.values()) == pytest.approx(whole, abs=0.1)
    for row, published in PUBLISHED.items():
        if row == name or row.startswith(f"{name}-"):
            tuned = sum(sizes[key] for key in TlDmi(network=row).trainable(split))
            assert tuned == pytest.approx(published.tuned, abs=0.06), row


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("tl-dmi", "give one of"),
        ("tl-dmi:features.0,share=0.5", "give one of"),
        ("tl-dmi:network=vgg19", "unknown network"),
        ("tl-dmi:share=1", r"in \[0, 1\)"),
        ("tl-dmi:share=0.5,bn=off", "bn"),
    ],
)
def test_bad_settings_are_said_in_one_line(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_defense(spec)


def test_layers_that_do_not_exist_and_freezing_everything() -> None:
    with pytest.raises(UsageError, match=r"did you mean features\.\d"):
        TlDmi("features.9").trainable(_split(Defense()))
    with pytest.raises(UsageError, match="freezes every parameter"):
        TlDmi("head").trainable(_split(Defense()))


def test_a_network_that_has_learned_nothing_is_refused_before_training() -> None:
    settings = {"data": "mnist5k", "model": "convnet", "defenses": ["none", ["tl-dmi:features.0", "bido-hsic"]]}
    with pytest.raises(UsageError, match=r"tl-dmi keeps layers .*; set pretraining"):
        make_plan(AuditConfig.checked(settings))
    plan = make_plan(AuditConfig.checked({**settings, "pretraining": {"training": {"epochs": 1}}}))
    assert len(plan.defenses) == 2


def test_frozen_random_layers_run_when_asked_for() -> None:
    """ResNet-34 of VMI: trained from scratch, its first stage frozen at its random weights."""
    defense = TlDmi("features.3", random_ok=True)
    assert not defense.keeps_first_weights
    assert TlDmi("features.3").keeps_first_weights
    plan = make_plan(
        AuditConfig.checked({"data": "mnist5k", "model": "convnet", "defenses": ["tl-dmi:features.3,random_ok=true"]})
    )
    assert plan.defenses == [defense]
    split = _split(defense)
    before = split.state_dict()["model.features.0.weight"].clone()
    split, _, notes = train(split, image_set(24, "private"), TRAINING, seed=0, device=CPU)
    assert torch.equal(split.state_dict()["model.features.0.weight"], before)
    assert notes["trained_parameters"] == 691
