"""Nothing is listed that is not documented and contract-tested; nothing is in a package that is not listed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.data import DATASETS
from leakscope.core.defense import DEFENSES, Defense
from leakscope.core.metric import METRICS, Metric
from leakscope.core.prior import PRIORS, Prior
from leakscope.core.spec import Kind
from leakscope.models.architecture import MODELS

TESTS = Path(__file__).parent
KINDS: list[Kind[Any]] = [ATTACKS, DEFENSES, METRICS, DATASETS, MODELS, PRIORS]
CONTRACTS = {"attacks": "AttackContract", "defenses": "DefenseContract", "metrics": "MetricContract"}


def _ours(kind: Kind[Any]) -> list[str]:
    return [name for name in kind if kind[name].__module__.startswith("leakscope.")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_method_says_what_it_is(kind: Kind[Any]) -> None:
    for name in _ours(kind):
        first = (kind[name].__doc__ or "").strip().splitlines()[0]
        assert len(first) > 20, f"{kind.name} {name} has no documentation"
        assert not first.startswith(kind[name].__name__ + "("), f"{kind.name} {name} has only a generated docstring"


@pytest.mark.parametrize(("folder", "contract"), CONTRACTS.items())
def test_every_method_meets_its_contract(folder: str, contract: str) -> None:
    kind = next(kind for kind in KINDS if kind.package == f"leakscope.{folder}")
    text = "\n".join(path.read_text() for path in (TESTS / folder).glob("test_*.py") if contract in path.read_text())
    for name in _ours(kind):
        if kind is METRICS and METRICS[name].goal != "pictures":
            continue  # held against loops in tests/metrics/test_recognition.py, which takes all that are registered
        mentioned = re.search(rf"\b{kind[name].__name__}\(|[\"']{re.escape(name)}[\"':]", text)
        assert mentioned, f"no {contract} under tests/{folder} builds {name!r}"


@pytest.mark.parametrize(("kind", "base"), [(ATTACKS, Attack), (DEFENSES, Defense), (METRICS, Metric), (PRIORS, Prior)])
def test_every_class_of_a_package_is_registered(kind: Kind[Any], base: type) -> None:
    listed = {kind[name] for name in kind}
    package = importlib.import_module(kind.package)
    for module in pkgutil.iter_modules(package.__path__, kind.package + "."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(cls, base) and not inspect.isabstract(cls) and cls.__module__ == module.name:
                assert cls in listed, f"{cls.__module__}.{cls.__qualname__} is not registered"
