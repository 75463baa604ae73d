"""The one judge of claims: holds, does not hold, or cannot tell, for all papers alike.

Power: the share of true claims found to hold, in percent, for an effect of 0.06 where 0.02 counts, on 256 victims
whose differences vary by 0.1 with residuals of 0.1 (benchmarks/judge.py computes this table, and
tests/stats/test_claims.py checks it):

    spread of seeds   family    3 seeds   5 seeds
    0.005              1           95       100
    0.01               1           78        99
    0.02               1           43        82
    0.005             10           48       100
    0.01              10           20        98
    0.02              10            6        39

Three seeds decide a single claim whose effect is large beside the spread of seeds, and little in a family of ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leakscope.core.words import DoubtKind, Ruled
from leakscope.stats.distributions import Array
from leakscope.stats.effects import Effect, Spread, paired_effect, seeds_needed, spread, victims_to_show
from leakscope.stats.intervals import Estimate
from leakscope.stats.matching import Point, UnmatchedError, adjusted_effect, matched_effect, matched_pairs
from leakscope.stats.multiple import holm, simultaneous_intervals

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
class Adjusted:
    """Points of both sides, with accuracy as a covariate; see `adjusted_effect`."""

    left: Sequence[Point]
    right: Sequence[Point]


@dataclass(frozen=True)
class Evidence:
    """What was measured for one claim (None: nothing), and every doubt about it."""

    measured: Tables | Matched | Adjusted | None
    doubts: Sequence[Doubt] = ()


@dataclass(frozen=True)
class Ruling:
    """The verdict on one claim. `effect` is left − right; `simultaneous` its interval for the whole family."""

    claim: Claim
    verdict: Ruled
    reason: str
    p: float
    effect: Estimate | None = None
    simultaneous: Estimate | None = None
    doubts: tuple[Doubt, ...] = ()
    seeds_needed: int | None = None
    victims_needed: int | None = None


@dataclass(frozen=True)
class Noise:
    """How differences of a seeds × victims table vary, for what more seeds or victims would show."""

    spread: Spread
    seeds: int
    victims: int


@dataclass(frozen=True)
class Examined:
    """A claim with its effect and doubts, not yet ruled on: that takes the whole family. Plain data, so it is kept."""

    claim: Claim
    effect: Effect | None
    doubts: tuple[Doubt, ...] = ()
    noise: Noise | None = None


def examine(claim: Claim, evidence: Evidence) -> Examined:
    """The effect, or the doubt that says why there is none."""
    measured, doubts = evidence.measured, list(evidence.doubts)
    if measured is None:
        doubts = doubts or [Doubt(DoubtKind.NOT_MEASURED, "one side was not measured")]
        return Examined(claim, None, tuple(doubts))
    if isinstance(measured, Tables):
        if claim.matched:
            why = "the claim asks for equal accuracy, and no accuracies were given"
            doubts.append(Doubt(DoubtKind.NOT_MATCHED, why))
        effect = paired_effect(measured.left, measured.right, measured.paired, measured.redrawn)
        return Examined(claim, effect, tuple(doubts), _noise(measured))
    try:
        if isinstance(measured, Adjusted):
            return Examined(claim, adjusted_effect(measured.left, measured.right), tuple(doubts))
        effect = matched_effect(measured.left, measured.right, measured.accuracy)
        pairs = matched_pairs(measured.left, measured.right, measured.accuracy)
        return Examined(claim, effect, tuple(doubts), None if pairs is None else _noise(Tables(*pairs)))
    except UnmatchedError as error:
        return Examined(claim, None, (*doubts, Doubt(DoubtKind.NOT_MATCHED, str(error))))


def _noise(tables: Tables) -> Noise | None:
    left, right = np.asarray(tables.left, dtype=float), np.asarray(tables.right, dtype=float)
    if not tables.paired or len(left) < 2:
        return None
    difference = (left - right).mean(1, keepdims=True) if tables.redrawn else left - right
    return Noise(spread(difference), *difference.shape)


def _tests(claim: Claim, effect: Effect | None) -> tuple[float, float]:
    """One-sided p-values for "the claim holds" and for "it does not hold".

    less, more: effect in the claimed direction above the minimum, or below it.
    equal: two one-sided tests that −minimum < effect < minimum (Schuirmann, 1987), or that it lies outside.
    """
    if effect is None:
        return 1.0, 1.0
    limit = claim.minimum
    if claim.direction == "equal":
        outside = min(effect.p_above(limit), effect.p_below(-limit))
        return max(effect.p_above(-limit), effect.p_below(limit)), min(1.0, 2 * outside)
    if claim.direction == "more":
        return effect.p_above(limit), effect.p_below(limit)
    return effect.p_below(-limit), effect.p_above(-limit)


def judge(family: Sequence[tuple[Claim, Evidence]], level: float = 0.05) -> list[Ruling]:
    """Examine and rule on a family of claims."""
    return rule([examine(claim, evidence) for claim, evidence in family], level)


def rule(family: Sequence[Examined], level: float = 0.05) -> list[Ruling]:
    """Rule on all claims of a page together.

    Each claim has two one-sided tests at its minimum effect, p = 2 min(p_holds, p_fails), adjusted by Holm over the
    family. A claim with an adjusted p of at most `level` holds or does not hold, whichever was shown: the probability
    of one false "holds" or more in the family is at most level/2 at the boundary. Any doubt makes "cannot tell".
    Doubtful and unmeasured claims still count in the family, so doubt never makes another claim easier to show.
    """
    if not family:
        return []
    tests = [_tests(one.claim, one.effect) for one in family]
    adjusted = holm([min(1.0, 2 * min(pair)) for pair in tests])
    return [
        _ruling(one, pair, p, level, len(family)) for one, pair, p in zip(family, tests, adjusted.tolist(), strict=True)
    ]


def _ruling(one: Examined, tests: tuple[float, float], p: float, level: float, size: int) -> Ruling:
    verdict = Ruled.CANNOT_TELL
    if not one.doubts and p <= level:
        verdict = Ruled.HOLDS if tests[0] < tests[1] else Ruled.DOES_NOT_HOLD
    needed = _needed(one, level / size) if verdict is Ruled.CANNOT_TELL else (None, None)
    own = together = None
    if one.effect is not None:
        own, together = one.effect.interval(1 - level), simultaneous_intervals([one.effect], 1 - level, size)[0]
    reason = _reason(one.claim, own, p, verdict, one.doubts, needed)
    return Ruling(one.claim, verdict, reason, p, own, together, one.doubts, *needed)


def _needed(one: Examined, level: float) -> tuple[int | None, int | None]:
    """Seeds (with these victims), or else victims (with these seeds), to decide if the effect stays as it was seen."""
    if one.noise is None or one.effect is None:
        return None, None
    sign = -1 if one.claim.direction == "less" else 1
    seen = abs(one.effect.value) if one.claim.direction == "equal" else sign * one.effect.value
    distance = abs(seen - one.claim.minimum)
    more = seeds_needed(distance, one.noise.spread, one.noise.victims, level)
    return more, victims_to_show(distance, one.noise.spread, one.noise.seeds, level) if more is None else None


def _reason(
    claim: Claim,
    effect: Estimate | None,
    p: float,
    verdict: Ruled,
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
    if verdict is Ruled.HOLDS:
        return f"{seen}: {wanted} {claim.minimum:g}, as claimed."
    if verdict is Ruled.DOES_NOT_HOLD:
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
