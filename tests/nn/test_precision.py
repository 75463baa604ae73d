"""Networks trained in bfloat16, on the CPU, are as good as those trained in float32."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.decoder import TrainedDecoder
from leakscope.core import progress, seeds
from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.prior import PRIORS
from leakscope.core.spec import describe
from leakscope.nn import precision
from leakscope.nn.precision import computing
from leakscope.testing import AttackContract, PriorContract
from leakscope.testing.small import GAN, STYLE

CPU = torch.device("cpu")


def test_matrix_products_are_bfloat16_inside_and_float32_outside() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with computing("bf16", CPU):
        assert layer(x).dtype == torch.bfloat16
        with precision.exactly(CPU):
            assert layer(x).dtype == torch.float32
    for other in ("float32", "tf32"):  # a CPU has no TF32
        with computing(other, CPU):
            assert layer(x).dtype == torch.float32


def test_weights_that_change_inside_are_seen() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with computing("bf16", CPU):
        before = layer(x)
        with torch.no_grad():
            layer.weight.add_(1)
        assert not torch.equal(layer(x), before)


class Said:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def stage(self, name: str, total: int) -> AbstractContextManager[progress.Bar]:
        raise NotImplementedError


def test_a_device_without_it_says_so_once() -> None:
    precision._there.cache_clear()
    said = Said()
    with progress.listening(said):
        for _ in range(2):
            with computing("tf32", CPU):
                pass
    assert said.said == ["cpu has no tf32 here: float32 is used"]


def error(spec: dict[str, Any], seed: int) -> float:
    attack: Attack = ATTACKS.build(spec)
    suite = AttackContract()
    images = suite.run(attack, suite.view(attack.needs), seed).images
    return float((images - suite.truth()).square().mean())


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "decoder", "steps": 40, "capacity": "small"},
        {"kind": "decoder-gan", "steps": 6, "capacity": "small", "learning_rate": 1e-2},  # convolutions are slow here
    ],
    ids=["decoder", "decoder-gan"],
)
def test_decoders_score_within_the_interval_of_float32(spec: dict[str, Any]) -> None:
    wide = [error(spec, seed) for seed in range(5)]
    narrow = [error({**spec, "precision": "bf16"}, seed) for seed in range(2)]
    assert narrow[0] != wide[0], "bfloat16 changes numbers, if not what they say"
    # A mean of two against the interval of one more run: four standard deviations.
    assert abs(statistics.fmean(narrow) - statistics.fmean(wide)) < 4 * statistics.stdev(wide)


@pytest.mark.parametrize("spec", [GAN, STYLE], ids=["dcgan", "style"])
def test_generators_trained_in_bfloat16_make_pictures_like_those_of_float32(spec: dict[str, Any]) -> None:
    suite = PriorContract()

    def pictures(settings: dict[str, Any]) -> Tensor:
        return suite.made(PRIORS.build({**spec, **settings})).pictures(16, seeds.generator(0, "z"))

    wide, narrow = pictures({}), pictures({"precision": "bf16"})
    other = pictures({"learning_rate": 1.2 * PRIORS.build(spec).learning_rate})  # type: ignore[attr-defined]
    assert narrow.dtype == torch.float32
    assert not torch.equal(wide, narrow)
    # Closer than a rate that is a fifth higher, and as bright.
    assert (narrow - wide).square().mean() < 4 * (other - wide).square().mean() + 1e-6
    assert narrow.mean() == pytest.approx(float(wide.mean()), abs=0.02)


def test_compiling_is_asked_of_torch_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[nn.Module] = []

    def compile_(network: nn.Module) -> nn.Module:
        asked.append(network)
        return network

    monkeypatch.setattr(torch, "compile", compile_)
    spec = {"kind": "decoder", "steps": 10, "capacity": "small"}
    assert error({**spec, "compiled": True}, 0) == error(spec, 0)
    assert len(asked) == 1


def test_older_keys_are_left_alone() -> None:
    assert "precision" not in describe(TrainedDecoder())
    assert describe(TrainedDecoder(precision="bf16"))["precision"] == "bf16"
