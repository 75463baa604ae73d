"""Leakscope: how much of a person's picture can be rebuilt from what a network gives away.

>>> import leakscope
>>> result = leakscope.audit(model, (images, labels), cut="layer2")  # doctest: +SKIP
>>> result.verdict, result.results[0].leak  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakscope.api import attack as attack
    from leakscope.api import audit as audit
    from leakscope.api import load as load
    from leakscope.api import train as train
    from leakscope.core.model import SplitModel as SplitModel
    from leakscope.core.one_input import OneInput as OneInput
    from leakscope.experiments.defended import Defended as Defended

__all__ = ["Defended", "OneInput", "SplitModel", "attack", "audit", "load", "train"]

_HOMES = {
    "Defended": "leakscope.experiments.defended",
    "OneInput": "leakscope.core.one_input",
    "SplitModel": "leakscope.core.model",
    **dict.fromkeys(("attack", "audit", "load", "train"), "leakscope.api"),
}


def __getattr__(name: str) -> Any:
    # Nothing heavy is imported until it is used: `leakscope --help` must answer at once.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'leakscope' has no attribute {name!r}")
