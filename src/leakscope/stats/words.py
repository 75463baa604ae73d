"""The words of verdicts and doubts; everything that prints or stores them imports them from here."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What the judge says of a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_TELL = "cannot tell"


class DoubtKind(StrEnum):
    """Why a number may not mean what it seems to; any of them makes the verdict "cannot tell"."""

    CONTROL_FAILED = "control failed"
    NOT_CONVERGED = "attack not converged"
    LINEAR_BEATS_STRONG = "linear attack beats the strong one"
    BLACK_BOX_BEATS_WHITE_BOX = "black box beats white box"
    WEAKENED_RIVAL = "rival weaker than published"
    BLIND_ATTACKER = "blind attacker"
    ACCURACY_COLLAPSED = "accuracy collapsed"
    NOT_MATCHED = "accuracy not matched"
    NOT_MEASURED = "not measured"
    OTHER = "other doubt"
