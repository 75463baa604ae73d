"""What both ways of running L-BFGS agree on: the problem, the answer, and when a step is good enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

#: `objective(x, rows)` gives the value (n) and gradient (n×d) of the problems `rows` at `x` (n×d).
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

SUFFICIENT_DECREASE = 1e-4
BACKTRACKS = 12
WINDOW = 50  # steps after which a row is asked what it gained
PATIENCE = 5  # steps in a row that gain no more than round-off end a row


@dataclass(frozen=True)
class Minimum:
    """Where each row ended; rows whose objective was never finite stand at their start with value inf."""

    x: Tensor  # n×d
    value: Tensor  # n
    curve: list[float]  # mean objective over the finite rows (inf: none), at the start and after each step
    evaluations: int  # rows evaluated, in total


def lengths() -> list[float]:
    """The lengths that a line search tries, in order."""
    tried = [1.0]
    while len(tried) < BACKTRACKS:
        tried.append(tried[-1] * (0.5 if tried[-1] > 0.2 else 0.1))
    return tried
