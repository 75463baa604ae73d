"""No defence."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.core.defense import DEFENSES, Defense


@DEFENSES.register("none")
@dataclass(frozen=True)
class NoDefense(Defense):
    """Features leave the client as they are: z̃ = z. The twin that every defended target is compared with."""
