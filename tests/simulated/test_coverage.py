"""Nothing that `leakscope list` shows is left out of the simulated-device suite."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.core.attack import ATTACKS
from leakscope.core.defense import DEFENSES
from leakscope.core.metric import METRICS
from leakscope.core.prior import PRIORS
from leakscope.core.spec import Kind

from . import methods


@pytest.mark.parametrize(
    ("kind", "covered"),
    [
        (ATTACKS, {*methods.ATTACKS}),
        (DEFENSES, {*methods.DEFENSES}),
        (PRIORS, {*methods.PRIORS, *methods.PRIORS_FROM_FILES}),
        (METRICS, {*methods.METRICS, *methods.METRICS_OF_IDENTITIES, *methods.METRICS_FROM_FILES}),
    ],
    ids=["attacks", "defences", "priors", "metrics"],
)
def test_every_listed_method_runs_on_the_device(kind: Kind[Any], covered: set[str]) -> None:
    ours = {name for name in kind if kind[name].__module__.startswith("leakscope.")}
    assert covered == ours
