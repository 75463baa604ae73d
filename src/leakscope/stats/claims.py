"""The one judge of claims: holds, does not hold, or cannot tell, for all papers alike.

Power: the share of true claims found to hold, in percent, for an effect of 0.06 where 0.02 counts, on 256 victims
whose differences vary by 0.1 with residuals of 0.1 (tests/stats/test_claims.py simulates and checks this table):

    spread of seeds   family    3 seeds   5 seeds
    0.005              1           98       100
    0.01               1           82        99
    0.02               1           41        81
    0.005             10           57       100
    0.01              10           20        97
    0.02              10            3        46

Three seeds decide a single claim whose effect is large beside the spread of seeds, and little in a family of ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leakscope.stats.distributions import Array
from leakscope.stats.effects import Effect, paired_effect, seeds_needed, spread, victims_to_show
from leakscope.stats.intervals import Estimate
from leakscope.stats.matching import Point, UnmatchedError, matched_effect
from leakscope.stats.multiple import holm, simultaneous_intervals
from leakscope.stats.words import DoubtKind, Verdict

Direction = Literal["less", "more", "equal"]


@dataclass(frozen=True)
class Claim:
    """A published statement as data: the left side leaks less (more, equally much) than the right side.

    `minimum` is the smallest effect that counts; `matched` demands that both sides be as accurate.
    """

    id: str
    statement: str
    source: str
    left: str
    right: str
    direction: Direction = "less"
    minimum: float = 0.02
    matched: bool = False

    def __post_init__(self) -> None:
        if self.minimum < 0 or (self.direction == "equal" and self.minimum == 0):
            raise ValueError(f"claim {self.id}: minimum {self.minimum} must be positive (0 only for less and more)")


@dataclass(frozen=True)
class Doubt:
    """A reason not to believe the evidence of one side, whatever its numbers."""

    kind: DoubtKind
    reason: str


@dataclass(frozen=True)
class Tables:
    """Leaks of both sides, seeds × victims; see `paired_effect` for `paired` and `redrawn`."""

    left: Array
    right: Array
    paired: bool = True
    redrawn: bool = False


@dataclass(frozen=True)
class Matched:
    """Points of both sides, to be compared at one accuracy; see `matched_effect`."""

    left: Sequence[Point]
    right: Sequence[Point]
    accuracy: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What was measured for one claim (None: nothing), and every doubt about it."""

    measured: Tables | Matched | None
    doubts: Sequence[Doubt] = ()


@dataclass(frozen=True)
class Ruling:
    """The verdict on one claim. `effect` is left − right; `simultaneous` its interval for the whole family."""

    claim: Claim
    verdict: Verdict
    reason: str
    p: float
    effect: Estimate | None = None
    simultaneous: Estimate | None = None
    doubts: tuple[Doubt, ...] = ()
    seeds_needed: int | None = None
    victims_needed: int | None = None


_NOTHING = Effect(math.nan, math.inf, 0)


def _effect(claim: Claim, evidence: Evidence) -> tuple[Effect, list[Doubt]]:
    """The effect, or nothing and the doubt that says why there is none."""
    measured, doubts = evidence.measured, list(evidence.doubts)
    if measured is None:
        return _NOTHING, doubts or [Doubt(DoubtKind.NOT_MEASURED, "one side was not measured")]
    if isinstance(measured, Matched):
        try:
            return matched_effect(measured.left, measured.right, measured.accuracy), doubts
        except UnmatchedError as error:
            return _NOTHING, [*doubts, Doubt(DoubtKind.NOT_MATCHED, str(error))]
    if claim.matched:
        doubts.append(Doubt(DoubtKind.NOT_MATCHED, "the claim asks for equal accuracy, and no accuracies were given"))
    return paired_effect(measured.left, measured.right, measured.paired, measured.redrawn), doubts


def _tests(claim: Claim, effect: Effect) -> tuple[float, float]:
    """One-sided p-values for "the claim holds" and for "it does not hold".

    less, more: effect in the claimed direction above the minimum, or below it.
    equal: two one-sided tests that −minimum < effect < minimum (Schuirmann, 1987), or that it lies outside.
    """
    limit = claim.minimum
    if claim.direction == "equal":
        outside = min(effect.p_above(limit), effect.p_below(-limit))
        return max(effect.p_above(-limit), effect.p_below(limit)), min(1.0, 2 * outside)
    if claim.direction == "more":
        return effect.p_above(limit), effect.p_below(limit)
    return effect.p_below(-limit), effect.p_above(-limit)


def judge(family: Sequence[tuple[Claim, Evidence]], level: float = 0.05) -> list[Ruling]:
    """Rule on all claims of a page together.

    Each claim has two one-sided tests at its minimum effect, p = 2 min(p_holds, p_fails), adjusted by Holm over the
    family. A claim with an adjusted p of at most `level` holds or does not hold, whichever was shown: the probability
    of one false "holds" or more in the family is at most level/2 at the boundary. Any doubt makes "cannot tell".
    Doubtful and unmeasured claims still count in the family, so doubt never makes another claim easier to show.
    """
    if not family:
        return []
    effects = [_effect(claim, evidence) for claim, evidence in family]
    tests = [_tests(claim, effect) for (claim, _), (effect, _) in zip(family, effects, strict=True)]
    adjusted = holm([min(1.0, 2 * min(pair)) for pair in tests])
    wide = simultaneous_intervals([effect for effect, _ in effects], 1 - level)
    rulings = []
    for (claim, evidence), (effect, doubts), (holds, fails), p, together in zip(
        family, effects, tests, adjusted.tolist(), wide, strict=True
    ):
        verdict = Verdict.CANNOT_TELL
        if not doubts and p <= level:
            verdict = Verdict.HOLDS if holds < fails else Verdict.DOES_NOT_HOLD
        seeds, victims = None, None
        if verdict is Verdict.CANNOT_TELL and isinstance(evidence.measured, Tables):
            seeds, victims = _needed(claim, evidence.measured, effect, level / len(family))
        known = math.isfinite(effect.value)
        interval = effect.interval(1 - level) if known else None
        reason = _reason(claim, interval, p, verdict, doubts, (seeds, victims))
        rulings.append(
            Ruling(claim, verdict, reason, p, interval, together if known else None, tuple(doubts), seeds, victims)
        )
    return rulings


def _needed(claim: Claim, tables: Tables, effect: Effect, level: float) -> tuple[int | None, int | None]:
    """Seeds (with these victims), or else victims (with these seeds), to decide if the effect stays as it was seen."""
    left, right = np.asarray(tables.left, dtype=float), np.asarray(tables.right, dtype=float)
    if not tables.paired or len(left) < 2:
        return None, None
    sign = -1 if claim.direction == "less" else 1
    seen = abs(effect.value) if claim.direction == "equal" else sign * effect.value
    distance = abs(seen - claim.minimum)
    difference = (left - right).mean(1, keepdims=True) if tables.redrawn else left - right
    seeds, victims = difference.shape
    noise = spread(difference)
    more = seeds_needed(distance, noise, victims, level)
    return more, victims_to_show(distance, noise, seeds, level) if more is None else None


def _reason(
    claim: Claim,
    effect: Estimate | None,
    p: float,
    verdict: Verdict,
    doubts: Sequence[Doubt],
    needed: tuple[int | None, int | None],
) -> str:
    """One or two sentences: what was seen, and why that decides the claim or does not."""
    if effect is None:
        seen = "No effect could be computed"
    elif effect.bounded:
        seen = (
            f"{claim.left} less {claim.right} is {effect.value:+.3f} "
            f"({effect.level:.0%} interval {effect.low:+.3f} to {effect.high:+.3f}, adjusted p = {p:.2g})"
        )
    else:
        seen = f"{claim.left} less {claim.right} is {effect.value:+.3f} with a single seed, so its error is not known"
    if doubts:
        return f"{seen}. Not believed: " + "; ".join(f"{doubt.kind}: {doubt.reason}" for doubt in doubts) + "."
    wanted = {"less": "less by more than", "more": "more by more than", "equal": "equal within"}[claim.direction]
    if verdict is Verdict.HOLDS:
        return f"{seen}: {wanted} {claim.minimum:g}, as claimed."
    if verdict is Verdict.DOES_NOT_HOLD:
        return f"{seen}: shown not to be {wanted} {claim.minimum:g}."
    seeds, victims = needed
    if seeds is not None:
        takes = f" About {seeds} seeds would decide it if the effect stayed as it is."
    elif victims is not None:
        takes = f" About {victims} victims would decide it if the effect stayed as it is."
    elif effect is not None and not effect.bounded:
        takes = " At least two seeds per side are needed; five are advised."
    else:
        takes = ""
    return f"{seen}: neither shown to be {wanted} {claim.minimum:g} nor shown not to be.{takes}"
