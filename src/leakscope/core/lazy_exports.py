"""Packages that offer their classes without importing them: `import leakscope.attacks` must cost nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports a name's module, by `table`, when the name is first used."""

    def find(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{table[name]}"), name)

    return find
