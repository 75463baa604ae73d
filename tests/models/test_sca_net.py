"""The networks of the sparse-coding trial: published parameter counts, cuts, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from leakscope.core.errors import UsageError
from leakscope.core.model import cuts
from leakscope.models.resolve import instantiate, resolve
from leakscope.models.sca_net import ScaConvNet, ScaNet


def built(architecture: ScaNet, shape: tuple[int, int, int], classes: int) -> nn.Sequential:
    model = architecture.build(shape, classes)
    assert isinstance(model, nn.Sequential)
    return model


def linear_parameters(model: nn.Module) -> int:
    return sum(p.numel() for layer in model.modules() if isinstance(layer, nn.Linear) for p in layer.parameters())


def test_end_to_end_has_five_linear_layers_and_the_published_parameters() -> None:
    model = built(ScaNet(), (1, 28, 28), 10)
    assert sum(isinstance(layer, nn.Linear) for layer in model) == 5
    # Linear 28→500, 500→500, 500→28, 28→500 on rows, then 28·28·500 → 10: 4.2 M in all (spec/sca.md §2).
    assert linear_parameters(model) == 14_500 + 250_500 + 14_028 + 14_500 + 3_920_010
    assert model[:-1](torch.zeros(1, 1, 28, 28)).shape == (1, 392_000)


def test_split_has_three_linear_layers_and_196_million_parameters() -> None:
    with torch.device("meta"):
        model = built(ScaNet(rows=(500,), dense=(500,)), (1, 28, 28), 10)
    assert sum(isinstance(layer, nn.Linear) for layer in model) == 3
    assert linear_parameters(model) == 14_500 + 196_000_500 + 5_010


def test_the_papers_undefended_network_has_rows_and_no_convolution() -> None:
    """Rows 28→500 | 500→500→28→500 | 14,000→10, and 28→500 | 14,000→500→10 (spec/sca.md §2)."""
    model = built(ScaNet(channels=()), (1, 28, 28), 10)
    assert [name for name, _ in model.named_children()] == [
        "fc1", "relu1", "fc2", "relu2", "fc3", "relu3", "fc4", "flatten", "output",
    ]  # fmt: skip
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == linear_parameters(model) == 14_500 + 250_500 + 14_028 + 14_500 + 140_010
    assert model[:-2](torch.zeros(1, 1, 28, 28)).shape == (1, 1, 28, 500)
    with torch.device("meta"):
        split = ScaNet(channels=(), rows=(500,), dense=(500,)).build((1, 28, 28), 10)
    assert sum(p.numel() for p in split.parameters()) == 14_500 + 7_000_500 + 5_010


@pytest.mark.parametrize(
    ("spec", "shape", "expected"),
    [
        ("sca-net:rows=[6,5,4,6]", (1, 12, 12), ["fc4"]),
        ("sca-net:rows=[6],dense=[7]", (1, 12, 12), ["relu1"]),
        ("sca-net:channels=[],rows=[6],dense=[7]", (1, 12, 12), ["relu1"]),
        ("sca-conv-net:channels=[4,6,8],hidden=9", (3, 16, 16), ["norm2", "norm3"]),
    ],
)
def test_the_papers_cuts_separate_the_network(spec: str, shape: tuple[int, int, int], expected: list[str]) -> None:
    architecture = resolve(spec)
    model = instantiate(architecture, shape, 4)
    found = {cut.name for cut in cuts(model, torch.rand(2, *shape))}
    assert list(architecture.default_cuts) == expected
    assert set(expected) <= found


def test_rows_are_mapped_on_their_own() -> None:
    model = ScaNet(channels=(2, 3), rows=(6,), dense=(4,)).build((1, 8, 8), 4).eval()
    fc1 = model.get_submodule("fc1")
    x = torch.rand(1, 3, 8, 8)
    changed = x.clone()
    changed[0, 1, 5] += 1
    moved = (fc1(changed) - fc1(x)).abs().sum(3)[0] > 0
    assert moved.nonzero().tolist() == [[1, 5]]


def test_bad_settings_and_pictures_are_one_line() -> None:
    rows: list[dict[str, Any]] = [
        {"channels": (0, 4)}, {"channels": (4,)}, {"kernel": 4}, {"rows": ()}, {"dense": (0,)},
    ]  # fmt: skip
    for settings in rows:
        with pytest.raises(ValueError, match="must"):
            ScaNet(**settings)
    maps: list[dict[str, Any]] = [{"channels": (4,)}, {"kernel": 2}, {"hidden": 0}, {"dropout": 1.0}]
    for settings in maps:
        with pytest.raises(ValueError, match="must"):
            ScaConvNet(**settings)
    with pytest.raises(UsageError, match="fewer channels"):
        ScaConvNet().build((3, 8, 8), 10)
