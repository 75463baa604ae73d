"""Every defence keeps its contract on an accelerator, trains the CPU's network there, and needs no float64."""

from __future__ import annotations

import pytest
import torch

from leakscope.core import seeds
from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.model import SplitModel
from leakscope.experiments.training import Training, train
from leakscope.testing import DefenseContract, device
from leakscope.testing.synthetic import image_set, small_split

from . import methods


def built(name: str) -> Defense:
    return DEFENSES.build({"kind": name, **methods.DEFENSES[name]})


class TestDefenses(DefenseContract):
    device = methods.DEVICE

    @pytest.fixture(params=methods.DEFENSES)
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return built(request.param)

    @pytest.fixture
    def neutral(self) -> Defense:
        return DEFENSES.build("gaussian:0")


def trained(name: str, place: str) -> torch.Tensor:
    """All weights after two epochs in the real loop."""
    defense = built(name)
    with seeds.ambient(0, "rebuild"):
        split: SplitModel = defense.rebuild(small_split(), image_set(2, "private").images)
    split.defense = defense
    training = Training(epochs=2, batch=12, optimizer="sgd", learning_rate=0.01)
    split, _, _ = train(split, image_set(24, "private"), training, seed=0, device=torch.device(place))
    return torch.cat([p.detach().cpu().flatten() for p in split.parameters()])


#: How far weights may be from the CPU's: rounding; for `sca` also that its second layer is solved to a tenth, by
#: another solver than on the CPU.
ROUNDING, SOLVERS = 2e-4, {"sca": 0.05}


@pytest.mark.parametrize("name", methods.DEFENSES)
def test_training_is_the_cpus_with_float64_and_without(name: str) -> None:
    wanted, near = trained(name, "cpu"), SOLVERS.get(name, ROUNDING)
    torch.testing.assert_close(trained(name, methods.DEVICE), wanted, atol=near, rtol=0)
    with device.without_float64():
        torch.testing.assert_close(trained(name, methods.DEVICE), wanted, atol=near, rtol=0)
