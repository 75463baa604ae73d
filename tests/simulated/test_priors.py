"""Every prior keeps its contract on an accelerator, and makes the CPU's pictures there, without float64 too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from scipy.signal import firwin
from torch import Tensor

from leakscope.core import progress, seeds
from leakscope.core.prior import PRIORS, Prior
from leakscope.priors import _game
from leakscope.priors._mapping import Mapping
from leakscope.priors._stylegan2 import Synthesis2
from leakscope.priors._stylegan3 import Waves, signals
from leakscope.testing import PriorContract, device
from leakscope.testing.priors import same

from . import methods


class OnDevice(PriorContract):
    device = methods.DEVICE


class OnCpu(PriorContract):
    pass


@pytest.mark.parametrize("name", methods.PRIORS)
class TestPriors(OnDevice):
    @pytest.fixture
    def prior(self, name: str) -> Prior:
        return PRIORS.build(methods.PRIORS[name])


def _stylegan2() -> dict[str, Tensor]:
    """A random network of 16 pixels."""
    mapping, synthesis = Mapping(6, 5, 8), Synthesis2({4: 4, 8: 3, 16: 2}, 3, 5)
    state = {f"mapping.{name}": value for name, value in mapping.state_dict().items()}
    return state | {f"synthesis.{name}": value for name, value in synthesis.state_dict().items()}


def _stylegan3(layers: int = 6) -> dict[str, Tensor]:
    grid, tensors = signals(layers, 16), dict[str, Tensor]()
    for number, signal in enumerate(grid):
        outputs, kernel, before = (3, 1, grid[-2]) if number == layers else (4, 3, grid[max(number - 1, 0)])
        layer = {
            "weight": torch.randn(outputs, 4, kernel, kernel), "bias": torch.randn(outputs),
            "magnitude_ema": torch.tensor(1.7), "affine.weight": torch.randn(4, 5), "affine.bias": torch.ones(4),
        }  # fmt: skip
        if number < layers:
            fine = 2 * max(before.rate, signal.rate)
            for name, at in (("up_filter", before), ("down_filter", signal)):
                row = firwin(6 * (fine // at.rate), cutoff=at.cutoff, width=at.rate / 2, fs=fine)
                layer[name] = torch.from_numpy(row).float()
        tensors |= {f"synthesis.L{number}_{signal.size}_{outputs}.{name}": value for name, value in layer.items()}
    tensors |= {f"synthesis.input.{name}": value for name, value in Waves(4, 5, grid[0]).state_dict().items()}
    return tensors | {f"mapping.{name}": value for name, value in Mapping(6, 5, 2).state_dict().items()}


@pytest.mark.parametrize("name", methods.PRIORS_FROM_FILES)
class TestPriorsFromFiles(OnDevice):
    shape = (3, 16, 16)

    @pytest.fixture
    def prior(self, name: str, tmp_path: Path) -> Prior:
        with seeds.ambient(0, name):
            tensors = {"stylegan2": _stylegan2, "stylegan3": _stylegan3}[name]()
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "generator.safetensors")
        return PRIORS.build({"kind": name, "file": str(tmp_path / "generator.safetensors")})


@pytest.mark.parametrize("name", methods.PRIORS)
def test_pictures_are_the_cpus_with_float64_and_without(name: str) -> None:
    prior = PRIORS.build(methods.PRIORS[name])
    here, there = OnCpu(), OnDevice()
    wanted = here.made(prior).pictures(4, here.rng("z"))
    torch.testing.assert_close(there.made(prior).pictures(4, there.rng("z")), wanted, atol=1e-3, rtol=0)
    with device.without_float64():
        state = there.fit(prior)
        narrow = prior.generator(state, torch.device(there.device)).pictures(4, there.rng("z"))
    torch.testing.assert_close(narrow, wanted, atol=1e-3, rtol=0)


class _Killed(Exception):
    pass


class _Killer:
    """Ends the process, as far as the training loop can tell, at the third step of the game."""

    def __init__(self) -> None:
        self.steps = 0

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.steps += steps
        if self.steps == 3:
            raise _Killed

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[_Killer]:
        self.steps = 0 if name != "opening" else -100
        yield self

    def say(self, text: str) -> None:
        pass


TRAINED = [
    name for name, spec in methods.PRIORS.items()
    if "steps" in {field.name for field in dataclasses.fields(cast("Any", PRIORS[spec["kind"]]))}
]  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_a_killed_fit_goes_on_where_it_was(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prior, there = PRIORS.build(methods.PRIORS[name]), OnDevice()
    whole = there.state(prior)
    monkeypatch.setattr(_game, "_SECONDS", -1)
    with pytest.raises(_Killed), progress.listening(_Killer()):
        there.fit(prior, checkpoint=tmp_path)
    assert same(whole.tensors, there.fit(prior, checkpoint=tmp_path).tensors)
