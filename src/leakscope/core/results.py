"""What stages leave behind: typed, frozen, JSON in and out, and readable without torch.

Every record in the store, every row of audit.json and every number on a page is one of these. Labels in
them are for people; nothing reads a label to find out what something is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from leakscope.core.spec import Plain


def finite(value: float) -> float | None:
    """A number that JSON can hold: None in place of NaN and infinities."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Diagnostics:
    """What an attack says about itself; the flags are raised from it.

    `details` are figures of one method, for people; nothing is decided from them.
    """

    curve: tuple[float, ...] = ()  # objective, or validation error, after growing budgets
    curve_falls: bool = True  # a good run lowers the curve; False: it raises it (BREP-MI's radius)
    converged: bool | None = None  # by the attack's own stopping rule; None: it has none
    objective: float | None = None  # where the search ended
    zero_gradient: float = 0.0  # share of victims without a gradient through the release
    diverged: float = 0.0  # share of victims whose solve left its problem
    unexplained: float | None = None  # share whose reconstruction does not explain the features; None: not checked
    diverged_blocks: tuple[str, ...] = ()
    unexplained_blocks: tuple[str, ...] = ()
    lost_dimensions: Mapping[str, int] = field(default_factory=dict)  # by block: directions that it does not keep
    per_class: int = 1  # pictures for each class
    #: Validation leak against CPU seconds: (seconds, leak), growing budgets.
    anytime: tuple[tuple[float, float], ...] = ()
    queries: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def spent(self, *, queries: int, seconds: float, cpu_seconds: float) -> Diagnostics:
        """The same with its price."""
        return replace(self, queries=queries, seconds=round(seconds, 3), cpu_seconds=round(cpu_seconds, 3))

    def as_json(self) -> Plain:
        return {**asdict(self), "lost_dimensions": dict(self.lost_dimensions), "details": dict(self.details)}

    @classmethod
    def from_json(cls, plain: Plain) -> Diagnostics:
        tuples = {name: tuple(plain[name]) for name in ("curve", "diverged_blocks", "unexplained_blocks")}
        return cls(**{**plain, **tuples, "anytime": tuple(tuple(point) for point in plain["anytime"])})
