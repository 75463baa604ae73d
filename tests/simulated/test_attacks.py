"""Every attack keeps its contract on an accelerator, gives the CPU's pictures, and needs no float64 there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.model import Normalize, SplitModel
from leakscope.core.threat import Access, View
from leakscope.models.preact import PreactResNetArchitecture
from leakscope.testing import AttackContract, device
from leakscope.testing.synthetic import CLASSES, SHAPE, small_view

from .methods import CLASS, DEVICE, INSTANCE, RESIDUAL


def built(name: str) -> Attack:
    return ATTACKS.build({"kind": name, **(INSTANCE | RESIDUAL | CLASS)[name]})


class ResidualContract(AttackContract):
    """The contract, on a small residual target."""

    def target(self) -> SplitModel:
        with seeds.ambient(0, "residual"):
            model = PreactResNetArchitecture(width=4, strided=False, growth=(2, 1, 1)).build(SHAPE, CLASSES)
        split = SplitModel(model, "layer2.1", normalize=Normalize((0.5,), (0.25,)))
        return split.eval().to(self.device)

    def view(self, access: frozenset[Access], **handed: Any) -> View:
        settings: dict[str, Any] = {"split": self.target(), "public": 16, **handed}
        return small_view(access, device=torch.device(self.device), **settings)


class OnCpu(AttackContract):
    pass


class OnDevice(AttackContract):
    device = DEVICE


class ResidualOnDevice(ResidualContract):
    device = DEVICE


@pytest.mark.parametrize("name", INSTANCE | CLASS)
class TestAttacks(OnDevice):
    @pytest.fixture
    def attack(self, name: str) -> Attack:
        return built(name)


@pytest.mark.parametrize("name", RESIDUAL)
class TestResidualAttacks(ResidualOnDevice):
    @pytest.fixture
    def attack(self, name: str) -> Attack:
        return built(name)


@pytest.mark.parametrize("name", INSTANCE | RESIDUAL | CLASS)
def test_pictures_are_the_cpus_with_float64_and_without(name: str) -> None:
    attack = built(name)
    here, there = (ResidualContract(), ResidualOnDevice()) if name in RESIDUAL else (OnCpu(), OnDevice())
    granted = frozenset(Access) if name == "auto" else attack.needs  # it uses whatever it is given
    wanted = here.run(attack, here.view(granted)).images
    found = there.run(attack, there.view(granted)).images
    torch.testing.assert_close(found.cpu(), wanted, atol=2e-3, rtol=0)
    with device.without_float64():
        narrow = there.run(attack, there.view(granted)).images
    torch.testing.assert_close(narrow.cpu(), wanted, atol=2e-3, rtol=0)
