"""Every registered method can be imported from its package, and importing the package costs nothing."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

from leakscope.core.attack import ATTACKS
from leakscope.core.data import DATASETS
from leakscope.core.defense import DEFENSES
from leakscope.core.metric import METRICS
from leakscope.core.prior import PRIORS
from leakscope.core.spec import Kind
from leakscope.models.architecture import MODELS

KINDS: list[Kind[Any]] = [ATTACKS, DEFENSES, METRICS, DATASETS, MODELS, PRIORS]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_registered_class_is_exported_and_nothing_else(kind: Kind[Any]) -> None:
    package = importlib.import_module(kind.package)
    ours = {cls for cls in (kind[name] for name in kind) if cls.__module__.startswith(kind.package + ".")}
    assert {getattr(package, name) for name in package.__all__} == ours
    assert all(name == getattr(package, name).__name__ for name in package.__all__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_type_checkers_are_told_the_same_names(kind: Kind[Any]) -> None:
    package = importlib.import_module(kind.package)
    tree = ast.parse(inspect.getsource(package))
    told = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    assert told == {name: f"{kind.package}.{module}" for name, module in package.EXPORTS.items()}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    package = importlib.import_module("leakscope.attacks")
    with pytest.raises(AttributeError, match=r"'leakscope\.attacks' has no attribute 'Ridgee'"):
        package.Ridgee


def test_packages_are_imported_without_torch() -> None:
    packages = ", ".join(kind.package for kind in KINDS)
    script = f"import sys, leakscope, {packages}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
