"""Whether a configuration file may name code: only with the word of who runs it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from leakscope.core.attack import ATTACKS
from leakscope.core.data import DATASETS
from leakscope.core.defense import DEFENSES
from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS
from leakscope.core.own_code import code_in
from leakscope.core.prior import PRIORS
from leakscope.models.architecture import MODELS

#: What other packages can bring methods of.
KINDS = (ATTACKS, DATASETS, DEFENSES, METRICS, MODELS, PRIORS)


@cache
def brought() -> frozenset[str]:
    """Names of the methods that packages of others brought; looking for packages takes a while."""
    return frozenset(name for kind in KINDS for name in kind.foreign())


def require_permission(path: Path, file: Mapping[str, Any], run: Mapping[str, Any], typed: Mapping[str, Any]) -> None:
    """Refuse code that stands in the file at `path` and would be run, unless the command line names it too.

    `file` is what the file says, `run` what is about to be run, `typed` what the command line says.
    """
    plugins = brought()
    unused = {"scales": None, "variants": None}  # those that are used are layered in already
    named = code_in({**file, **unused}, plugins) & code_in({**run, **unused}, plugins)
    named -= code_in(dict(typed), plugins)
    if named:
        told = ", ".join(sorted(named))[:300]
        raise UsageError(
            f"{path} names code that would be run as you, or a service that pictures would be sent to ({told}); "
            "read it, and add --allow-code if you trust whoever wrote it, or name it on the command line"
        )
