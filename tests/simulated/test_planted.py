"""One-line device mix-ups, planted in our own methods one at a time: each makes the simulated-device suite fail.

Every one of them passes the same part of the suite on a CPU, which is why the suite exists.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from leakscope.attacks import _class_search, _decoder_training, _draws, _latent_descent, _release, embedding
from leakscope.core import devices
from leakscope.core.defense import DEFENSES
from leakscope.core.metric import METRICS
from leakscope.core.prior import PRIORS
from leakscope.defenses import _dependence, _drawing, _sparse_layers
from leakscope.nn import ssim
from leakscope.priors import linear
from leakscope.testing import AttackContract, DefenseContract, MetricContract, PriorContract, device

from . import methods
from .test_attacks import built


def attack(name: str) -> Callable[[str], None]:
    def run(place: str) -> None:
        suite = type("Suite", (AttackContract,), {"device": place})()
        suite.test_pictures_are_finite_and_in_range(built(name))

    return run


def defence(name: str) -> Callable[[str], None]:
    def run(place: str) -> None:
        suite = type("Suite", (DefenseContract,), {"device": place})()
        defense = DEFENSES.build({"kind": name, **methods.DEFENSES[name]})
        suite.test_release_keeps_shape_and_stays_finite(defense, training=False)
        suite.test_gradients_reach_the_encoder(defense)

    return run


def metric(place: str) -> None:
    suite = type("Suite", (MetricContract,), {"device": place})()
    suite.test_one_finite_value_an_image(METRICS.build("ssim"), None)


def prior(place: str) -> None:
    suite = type("Suite", (PriorContract,), {"device": place})()
    suite.test_pictures_are_pixels_and_can_be_searched(PRIORS.build({"kind": "linear", "components": 6}))


def narrow(run: Callable[[str], None]) -> Callable[[str], None]:
    """The same part of the suite in its pass without float64."""

    def without(place: str) -> None:
        with device.without_float64():
            run(place)

    return without


@dataclass(frozen=True)
class Plant:
    """A mistake: in the function `name` of `owner`, `right` becomes `wrong`; `suite` must notice."""

    owner: Any
    name: str
    right: str
    wrong: str
    suite: Callable[[str], None]


PLANTED: dict[str, Plant] = {
    "a tensor is created on the CPU": Plant(
        embedding.EmbeddingInversion, "invert",
        "dtype=torch.bool, device=target.device", "dtype=torch.bool", attack("embedding"),
    ),
    "a generator belongs to the CPU": Plant(
        _release, "child", "torch.Generator(device=device)", "torch.Generator()", attack("embedding"),
    ),
    "a tensor goes to the first device": Plant(
        _class_search, "classes_of", "seen.classes.to(view.device)", "seen.classes.to(view.device.type)", attack("gmi"),
    ),
    "numpy is asked for device memory": Plant(
        _sparse_layers.Memory, "keys", "x.detach().cpu().contiguous()", "x.detach().contiguous()", defence("sca"),
    ),
    "draws stay on the CPU": Plant(
        _draws.ClassDraws, "normal", ".to(self._device)", "", attack("gmi"),
    ),
    "pictures stay on the CPU": Plant(
        _decoder_training._Pictures, "__call__",
        "rows_of(self.kept, index, self.device)", "self.kept.cpu()[index.cpu()]", attack("decoder"),
    ),
    "memory that nobody wrote is read": Plant(
        _latent_descent.Lookahead, "__call__", "torch.zeros_like(z)", "torch.empty_like(z)", attack("gmi"),
    ),
    "noise is drawn where the generator is not": Plant(
        _drawing, "blank", "device=z.device if rng is None else rng.device", 'device="cpu"', defence("gaussian"),
    ),
    "labels come back to the CPU": Plant(
        _dependence, "label_kernel", "F.one_hot(y, classes)", "F.one_hot(y.cpu(), classes)", defence("bido-hsic"),
    ),
    "a metric builds its window on the CPU": Plant(
        ssim, "_moving_average", "window + 1, device=like.device)", "window + 1)", metric,
    ),
    "a generator network is never moved": Plant(
        linear.Linear, "generator", ".to(device)", ".cpu()", prior,
    ),
    "float64 on a device without it": Plant(
        devices, "widened", "x = x.cpu()", "pass", narrow(attack("ridge")),
    ),
}  # fmt: skip


def plant(mistake: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the function anew with the mistake in it, and put it wherever the right one was known."""
    found = inspect.getattr_static(mistake.owner, mistake.name)
    right: Any = found.__func__ if isinstance(found, staticmethod) else found
    source = textwrap.dedent(inspect.getsource(right))
    assert source.count(mistake.right) == 1, f"{mistake.name} no longer says {mistake.right!r}: plant it elsewhere"
    scope: dict[str, Any] = {}
    code = compile(
        source.replace(mistake.right, mistake.wrong), "planted", "exec", __future__.annotations.compiler_flag
    )
    exec(code, right.__globals__, scope)
    wrong = scope[mistake.name]
    wrong = wrong.__func__ if isinstance(wrong, staticmethod) else wrong
    monkeypatch.setattr(right, "__code__", wrong.__code__)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mix_up_makes_the_suite_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = PLANTED[name]
    mistake.suite(methods.DEVICE)
    plant(mistake, monkeypatch)
    with pytest.raises((RuntimeError, TypeError, AssertionError)):
        mistake.suite(methods.DEVICE)
    mistake.suite("cpu")  # where nobody notices
