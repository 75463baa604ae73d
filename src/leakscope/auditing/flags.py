"""Flags: reasons to doubt a number, found by comparing results with each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["blocks", "warns"]


@dataclass(frozen=True)
class Rule:
    """What a flag means. A blocking flag turns "pass" into "inconclusive"."""

    severity: Severity
    explanation: str


RULES: dict[str, Rule] = {
    "control-failed": Rule("blocks", "The attack could not invert an encoder that sends the picture itself, so its failure elsewhere says nothing."),
    "class-control-failed": Rule("blocks", "The attack could not satisfy a target that scores the distance to each class's mean picture, so its failure elsewhere says nothing."),
    "target-unconvinced": Rule("blocks", "The target itself does not accept the reconstructions: the search inside the prior did not converge."),
    "weak-on-control": Rule("blocks", "The attack inverts a lossless encoder of easy pictures but not of these: it needs more public pictures or more steps, and what it rebuilt is a lower bound."),
    "canary-missed": Rule("blocks", "The attack missed a lossless copy of the picture planted beside the defended features."),
    "negative-control": Rule("blocks", "Reconstructions fit pictures of other victims: the evaluation itself leaks."),
    "attack-diverged": Rule("blocks", "Some solves left their problem: not finite, or explaining no more than zeros would. What they rebuilt says nothing."),
    "not-converged": Rule("blocks", "The attack's own objective was still falling steeply when its budget ended, or what it rebuilt does not explain the features it was given."),
    "more-budget-helps": Rule("blocks", "Twice the budget rebuilt noticeably more: the reported leak is a lower bound."),
    "accuracy-collapsed": Rule("blocks", "The target's accuracy is far below its undefended twin's, or near chance: it hides pictures by being useless."),
    "linear-beats-strong": Rule("warns", "A linear inverter recovers more than this attack, which is therefore too weak or badly tuned here."),
    "black-box-beats-white-box": Rule("warns", "An attack without gradients beats this one: gradients are masked, or the search is stuck."),
    "zero-gradient": Rule("warns", "The encoder's gradient vanishes for some victims (rounding, saturation): search sees nothing, other attacks may."),
    "features-unexplained": Rule("warns", "What this attack rebuilt does not explain the features it was given (a block that loses dimensions or folds, a solve that diverged or stopped early); another attack on this target does, and recovers no less."),
    "noise-not-averaged": Rule("warns", "The release is random and this attack does not take its expectation."),
    "single-class-means": Rule("warns", "Public data lacks some victims' classes; their floor is the overall mean picture."),
}  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """One flag raised at one place."""

    id: str
    where: str

    def as_dict(self) -> dict[str, str]:
        return {**asdict(self), **asdict(RULES[self.id])}


#: An objective still falling by this share over the last fifth of the budget has not converged.
STILL_FALLING = 0.1
#: Differences of leak below this are ties.
TIE = 0.05


def still_falling(curve: list[float]) -> bool:
    """Whether an objective (low is good) falls by more than a tenth over the last fifth of its curve."""
    if len(curve) < 5:
        return False
    before, last = curve[-1 - len(curve) // 5], curve[-1]
    return before > 0 and (before - last) / before > STILL_FALLING


def of_result(result: dict[str, Any], *, random_release: bool, averages_noise: bool) -> list[str]:
    """Flags that one result shows by itself."""
    notes = result["notes"]
    leaky = result["metrics"]["leak"]["mean"] > 1 - TIE
    found = {
        # An attack that says what it left unexplained is judged beside the others; see `across`.
        "attack-diverged": notes.get("diverged", 0) > 0 and notes.get("unexplained") is None,
        # A result at the ceiling needs no more convergence.
        "not-converged": still_falling(notes.get("curve", [])) and not leaky,
        "zero-gradient": notes.get("zero_gradient", 0) > 0,
        "noise-not-averaged": random_release and not averages_noise,
    }
    return [name for name, raised in found.items() if raised]


def _failure(notes: dict[str, Any], leak: float) -> str | None:
    """The flag of an attack that did not explain all the features it was given, if nothing stands in for it."""
    if notes.get("unexplained") is None:
        return None
    if notes.get("diverged", 0) > 0:
        return "attack-diverged"
    # A result at the ceiling needs no more convergence; one still falling is flagged by its curve.
    open_ended = notes["unexplained"] > 0 and leak <= 1 - TIE
    return "not-converged" if open_ended and not still_falling(notes.get("curve", [])) else None


def across(results: Iterable[dict[str, Any]], white_box: set[str]) -> dict[str, list[str]]:
    """Flags that results on one target raise against each other, by result key."""
    rows = list(results)
    leak = {row["key"]: row["metrics"]["leak"]["mean"] for row in rows}
    sound = [row for row in rows if not row["notes"].get("unexplained") and not row["notes"].get("diverged")]
    explained = max((leak[row["key"]] for row in sound), default=None)
    linear = max((leak[row["key"]] for row in rows if row["attack"].startswith("ridge")), default=None)
    black = max((leak[row["key"]] for row in rows if row["attack"].partition(":")[0] not in white_box), default=None)
    found: dict[str, list[str]] = {}
    for row in rows:
        name, value = row["attack"].partition(":")[0], leak[row["key"]]
        failure = _failure(row["notes"], value)
        if failure is not None:
            # Its failure counts for nothing, unless an attack that did explain the features stands in for it.
            covered = explained is not None and explained >= value - TIE
            found.setdefault(row["key"], []).append("features-unexplained" if covered else failure)
        if linear is not None and name != "ridge" and linear > value + TIE:
            found.setdefault(row["key"], []).append("linear-beats-strong")
        if black is not None and name in white_box and black > value + TIE:
            found.setdefault(row["key"], []).append("black-box-beats-white-box")
    return found


#: Points of accuracy a defence may cost before its privacy stops counting.
COLLAPSE = 0.1


#: Blocks a flag names; a failure spreads from the first to all that are peeled after it.
_NAMED = 3


def with_blocks(flag: Flag, notes: dict[str, Any]) -> Flag:
    """The flag with the blocks it was raised for, where an attack names them."""
    named = {
        "attack-diverged": ("diverged_blocks",),
        "not-converged": ("unexplained_blocks",),
        "features-unexplained": ("diverged_blocks", "unexplained_blocks"),
    }
    blocks: list[str] = next((notes[key] for key in named.get(flag.id, ()) if notes.get(key)), [])
    if not blocks:
        return flag
    shown = ", ".join(blocks[:_NAMED]) + (f" and {len(blocks) - _NAMED} more" if len(blocks) > _NAMED else "")
    return Flag(flag.id, f"{flag.where}, {'block' if len(blocks) == 1 else 'blocks'} {shown}")


def collapsed(accuracy: float, twin: float | None, classes: int) -> bool:
    """Whether a target lost its use: near chance, or far below its undefended twin."""
    return accuracy < 1.5 / classes or (twin is not None and accuracy < twin - COLLAPSE)
