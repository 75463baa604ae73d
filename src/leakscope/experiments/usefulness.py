"""What a network is good for, where its pictures have no labels: a function of the user's says it, or nobody does."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from leakscope.core.errors import UsageError
from leakscope.core.own_code import function_from

#: From N×D outputs and N×C×H×W pictures to a number between 0 (useless) and 1.
Utility = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class Usefulness:
    """A function with a name and an identity."""

    name: str
    identity: str
    measure: Utility

    @classmethod
    def of(cls, given: str | Utility) -> Usefulness:
        """From `FILE.py:FUNCTION`, or from the function itself."""
        function = function_from(given) if isinstance(given, str) else given
        if not callable(function):
            raise UsageError(f"{given!r} is no function; give utility a function of (outputs, pictures)")
        code = getattr(function, "__code__", None)
        text = repr((getattr(code, "co_code", b""), getattr(code, "co_consts", ()), getattr(code, "co_names", ())))
        name = getattr(function, "__name__", type(function).__name__)
        return cls(name, hashlib.sha256(f"{name} {text}".encode()).hexdigest()[:16], function)

    def __call__(self, outputs: Tensor, pictures: Tensor) -> float:
        try:
            value = float(self.measure(outputs, pictures))
        except Exception as error:  # whatever a user's function raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"utility {self.name} failed ({reason}); mend the function") from error
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise UsageError(f"utility {self.name} returned {value:g}; it must lie between 0 (useless) and 1")
        return value
