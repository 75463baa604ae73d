"""Single residual blocks from their true outputs, as in PEEL's table VI: the baseline is not weaker than published."""

from __future__ import annotations

import pytest

from leakscope.attacks.peel import PRESETS
from leakscope.attacks.peeling.take_apart import take_apart
from leakscope.core import seeds
from leakscope.core.model import Normalize, SplitModel
from leakscope.models.preact import PreactResNetArchitecture
from leakscope.testing.synthetic import smooth_images

SHAPE = (3, 8, 8)
#: Relative error of the input of the second block of each layer, ResNet-18 with random weights and without strides.
PUBLISHED = {"layer4.1": 8.95e-5, "layer3.1": 7.03e-5, "layer2.1": 4.88e-5, "layer1.1": 3.50e-5}


SEEDS = (0, 1, 2)  # the paper has three runs


def relative_error(preset: str, name: str, seed: int = 0) -> float:
    with seeds.ambient(seed, "model"):
        model = PreactResNetArchitecture(width=4, strided=False).build(SHAPE, 5)
    # Pictures at a scale that leaves every block inputs of order one: random branches halve them from layer to layer.
    split = SplitModel(model, "layer4.1", normalize=Normalize((0.5,) * 3, (0.0625,) * 3)).eval().requires_grad_(False)
    chain = take_apart(split, SHAPE)
    x = chain.shallow(smooth_images(1, "p", SHAPE))
    for block in chain.blocks:
        if block.name == name:
            found, _ = PRESETS[preset].invert_block(block, block(x))
            return float((found - x).norm() / x.norm())
        x = block(x)
    raise AssertionError(f"no block {name}")


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_single_blocks_reach_the_published_errors(name: str) -> None:
    """As the paper reports them: the mean of runs with different random weights."""
    errors = [relative_error("tuned", name, seed) for seed in SEEDS]
    assert sum(errors) / len(errors) <= PUBLISHED[name]


def test_the_published_settings_come_within_an_order_of_magnitude() -> None:
    """Said on the page: at a constant rate of 0.01 Adam does not settle further in 2000 steps."""
    assert relative_error("published", "layer4.1") <= 10 * PUBLISHED["layer4.1"]
