"""Leakscope: how much of a person's picture can be rebuilt from what a network gives away.

>>> import leakscope
>>> result = leakscope.audit(model, (images, labels), cut="layer2")  # doctest: +SKIP
>>> result.verdict, result.results[0]["metrics"]["leak"]["mean"]  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakscope.api import audit as audit
    from leakscope.core.model import SplitModel as SplitModel

__all__ = ["SplitModel", "audit"]


def __getattr__(name: str) -> Any:
    # Nothing heavy is imported until it is used: `leakscope --help` must answer at once.
    if name == "audit":
        from leakscope.api import audit

        return audit
    if name == "SplitModel":
        from leakscope.core.model import SplitModel

        return SplitModel
    raise AttributeError(f"module 'leakscope' has no attribute {name!r}")
