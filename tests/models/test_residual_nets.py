"""PEEL's networks have the shapes and the formula of the paper; IR networks those of the face literature."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.models.allconv import AllConv
from leakscope.models.architecture import MODELS
from leakscope.models.ir import IRArchitecture
from leakscope.models.preact import PlainBlock, PreactBlock, PreactResNetArchitecture


def features(architecture: PreactResNetArchitecture | IRArchitecture, cut: str, side: int) -> tuple[int, ...]:
    with seeds.ambient(0, "model"):
        model = architecture.build((3, side, side), 5).eval()
    with torch.no_grad():
        return tuple(SplitModel(model, cut).encode(torch.rand(1, 3, side, side)).shape[1:])


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (32, 4, 4)),
        ({"strided": False}, (32, 32, 32)),
        ({"stem": "conv7"}, (32, 2, 2)),
        ({"stem": "conv7", "pooling": True}, (32, 1, 1)),
        ({"growth": (5, 5, 3), "width": 1}, (75, 4, 4)),
    ],
    ids=["strided", "no stride", "7×7 stem", "pooling", "HRN-5x5x3x"],
)
def test_the_deepest_map(settings: dict[str, object], shape: tuple[int, ...]) -> None:
    architecture = PreactResNetArchitecture(**({"width": 4} | settings))  # type: ignore[arg-type]
    assert features(architecture, "layer4.1", 32) == shape


@pytest.mark.parametrize(("depth", "blocks"), [(18, 8), (34, 16), (50, 32), (152, 50)])
def test_depths_as_adapted_in_the_paper(depth: int, blocks: int) -> None:
    architecture = PreactResNetArchitecture(depth=depth, width=1)
    model = architecture.build((3, 16, 16), 5)
    assert sum(isinstance(module, PreactBlock) for module in model.modules()) == blocks
    assert set(architecture.default_cuts) <= {name for name, _ in model.named_modules()}


def test_a_block_is_the_papers_formula() -> None:
    with seeds.ambient(0, "block"):
        block = PreactBlock(3, 4, 2, "relu", batch_norm=False).double()
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    shortcut = block.shortcut[0].weight  # type: ignore[index]
    wanted = nn.functional.conv2d(x, shortcut, stride=2) + nn.functional.conv2d(
        nn.functional.conv2d(x, block.conv1.weight, stride=2, padding=1).relu(), block.conv2.weight, padding=1
    )
    torch.testing.assert_close(block(x), wanted)


@pytest.mark.parametrize(("init", "variance"), [("default", 1 / 3), ("xavier", 1.0), ("kaiming", 2.0)])
def test_initial_weights_have_their_variance(init: str, variance: float) -> None:
    """Over fan-in: 1/3 for PyTorch's own, 2·fan_in/(fan_in + fan_out) = 1 for Xavier between equals, 2 for Kaiming."""
    with seeds.ambient(0, "init"):
        model = PreactResNetArchitecture(width=32, init=init).build((3, 16, 16), 5)  # type: ignore[arg-type]
    weight = model.get_submodule("layer1.0.conv1").weight
    assert isinstance(weight, torch.Tensor)
    # The variance of n draws is off by at most about √(3/n), times four here.
    assert float(weight.detach().var()) * 9 * 32 == pytest.approx(variance, rel=4 * math.sqrt(3 / weight.numel()))


def test_without_shortcut_the_same_branch_is_left() -> None:
    """`skip=false` takes W_s x out of the formula and draws the same weights where shapes do not change."""
    with seeds.ambient(0, "block"):
        whole = PreactBlock(3, 3, 1, "relu", batch_norm=False).double()
    with seeds.ambient(0, "block"):
        plain = PlainBlock(3, 3, 1, "relu", batch_norm=False).double()
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(whole(x) - x, plain(x))
    model = PreactResNetArchitecture(width=1, skip=False).build((3, 16, 16), 5)
    assert sum(isinstance(module, PlainBlock) for module in model.modules()) == 8
    assert not any(isinstance(module, PreactBlock) for module in model.modules())


def test_pictures_reach_the_network_centred() -> None:
    normalize = PreactResNetArchitecture().normalization()
    for channels in (1, 3):
        torch.testing.assert_close(normalize(torch.full((1, channels, 2, 2), 0.75)), torch.ones(1, channels, 2, 2))


def test_allconv_has_the_size_of_the_paper() -> None:
    """Springenberg et al.: All-CNN-C for CIFAR-10 has about 1.4 million parameters, none in a dense layer."""
    model = AllConv().build((3, 32, 32), 10)
    assert sum(p.numel() for p in model.parameters()) == 1_369_738
    assert not any(isinstance(module, nn.Linear | nn.MaxPool2d) for module in model.modules())
    split = SplitModel(model.eval(), AllConv().default_cuts[1])
    with torch.no_grad():
        assert tuple(split.encode(torch.rand(1, 3, 32, 32)).shape) == (1, 192, 8, 8)
    with pytest.raises(UsageError, match="8×8 or more"):
        AllConv().build((3, 4, 4), 10)


def test_ir_halves_four_times() -> None:
    assert features(IRArchitecture(depth=50, width=2, dim=4), "body.23", 32) == (16, 2, 2)
    assert IRArchitecture(depth=152).default_cuts == ("body.2", "body.10", "body.46", "body.49")


def test_bad_settings_name_the_remedy() -> None:
    with pytest.raises(UsageError, match="choose one of 18, 34, 50, 152"):
        MODELS.build("preact-resnet:depth=20")
    with pytest.raises(UsageError, match="divisible by 16"):
        IRArchitecture(depth=18, width=2).build((3, 20, 20), 5)
