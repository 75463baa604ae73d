"""Claims as data, and the evidence for each; `stats.claims.rule` alone decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from leakscope.core.results import AttackResult, TargetRecord
from leakscope.core.words import Control, DoubtKind, FlagId
from leakscope.stats import claims as stats
from leakscope.stats.claims import Adjusted, Direction, Doubt, Evidence, Matched, Tables
from leakscope.stats.distributions import Array
from leakscope.stats.matching import Point
from leakscope.studies.picks import Pick, attack_identity, weakened
from leakscope.studies.records import Decided, decided

#: Figures of single targets, by metric and key of the target.
Measured = Mapping[str, Mapping[str, float]]
ACCURACY = "accuracy"
#: Fewer trainings do not tell how trainings differ.
LEAST_SEEDS = 3

#: What a blocking flag on the strongest attack of a side means for a claim.
_DOUBTS = {
    FlagId.CONTROL_FAILED: DoubtKind.CONTROL_FAILED,
    FlagId.CLASS_CONTROL_FAILED: DoubtKind.CONTROL_FAILED,
    FlagId.WEAK_ON_CONTROL: DoubtKind.CONTROL_FAILED,
    FlagId.CANARY_MISSED: DoubtKind.CONTROL_FAILED,
    FlagId.NEGATIVE_CONTROL: DoubtKind.CONTROL_FAILED,
    FlagId.NOT_CONVERGED: DoubtKind.NOT_CONVERGED,
    FlagId.MORE_BUDGET_HELPS: DoubtKind.NOT_CONVERGED,
    FlagId.DIVERGED: DoubtKind.NOT_CONVERGED,
    FlagId.TARGET_UNCONVINCED: DoubtKind.NOT_CONVERGED,
    FlagId.ACCURACY_COLLAPSED: DoubtKind.ACCURACY_COLLAPSED,
    FlagId.BLIND: DoubtKind.BLIND_ATTACKER,
    FlagId.LINEAR_BEATS_ALL: DoubtKind.LINEAR_BEATS_STRONG,
}
#: Flags that say that a low mean does not protect everybody: they forbid a pass, and are no doubt about means.
_OF_SINGLE_VICTIMS = {FlagId.VICTIMS_EXPOSED, FlagId.UNEVEN}
#: Flags that say no more than that another attack, or a longer one, would find more.
_MORE_IS_THERE = {
    FlagId.NOT_CONVERGED, FlagId.MORE_BUDGET_HELPS, FlagId.SERVER_SEES_MORE, FlagId.WEAK_ON_CONTROL,
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """A published statement: left has less (more, equally much) of a metric than right, which may be a constant.

    By default the metric is the leak of the strongest attack on each victim among those that both sides met. A metric
    of targets is their accuracy, or one that the study measured itself. `margin` is what left may lose and still
    count ("does not hurt"). `matched` compares both sides at one accuracy; `adjusted` does so by analysis of covariance
    over all their targets. `spread` compares how much trainings differ: |mean of a seed − median of the seeds|
    (Brown & Forsythe, 1974).
    """

    id: str
    statement: str
    source: str
    left: Pick
    right: Pick | float
    direction: Direction = "less"
    metric: str = "leak"
    other_metric: str = ""  # of the right side; empty: the same
    minimum: float = 0.02
    matched: bool = False
    adjusted: bool = False
    margin: float = 0.0
    spread: bool = False

    @property
    def sides(self) -> tuple[tuple[Pick, str], ...]:
        """What is measured on each side that is not a constant."""
        right = () if isinstance(self.right, float | int) else ((self.right, self.other_metric or self.metric),)
        return ((self.left, self.metric), *right)

    @property
    def judged(self) -> stats.Claim:
        """As the judge takes it."""
        right = f"{self.right:g}" if isinstance(self.right, float | int) else self.right.title
        if self.margin:
            right = f"({right} {'less' if self.direction == 'more' else 'plus'} {self.margin:g})"
        return stats.Claim(
            self.id, self.statement, self.source, self.left.title, right, self.direction, self.minimum,
            self.matched or self.adjusted,
        )  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One trained target with every result on it."""

    target: TargetRecord
    results: tuple[AttackResult, ...]


class Source(Protocol):
    """Where samples and their values come from."""

    def samples(self, pick: Pick) -> list[Sample]: ...

    def values(self, result: AttackResult) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class _Side:
    """Values of one side: for each target its seed, accuracy, values and the victims they belong to."""

    seeds: tuple[int, ...]
    accuracies: tuple[float | None, ...]
    values: tuple[Array, ...]
    victims: tuple[str, ...]

    def table(self, seeds: Sequence[int]) -> Array:
        return np.stack([self.values[self.seeds.index(seed)] for seed in seeds])

    @property
    def points(self) -> list[Point]:
        """One per target; where every seed has victims of its own, their mean is all that seeds share."""
        known = zip(self.accuracies, self.values, self.seeds, strict=True)
        return [
            Point(accuracy, float(values.mean()) if self.redrawn else values, seed)
            for accuracy, values, seed in known
            if accuracy is not None
        ]

    @property
    def redrawn(self) -> bool:
        return len(set(self.victims)) > 1


class _NotMeasuredError(ValueError):
    """Why a side has no values."""


def is_of_targets(metric: str, measured: Measured) -> bool:
    """Whether a metric has one value per target rather than one per victim."""
    return metric == ACCURACY or metric in measured


def asked(claim: Claim, source: Source, measured: Measured) -> bool:
    """Whether a configuration runs what a claim is about."""
    for pick, metric in claim.sides:
        samples = source.samples(pick)
        own = measured.get(metric)
        if not samples or (own is not None and not any(sample.target.key in own for sample in samples)):
            return False
        needed = pick.attacks and not is_of_targets(metric, measured)
        if needed and not all(_of_kinds(sample, pick) for sample in samples):
            return False
    return True


def _of_kinds(sample: Sample, pick: Pick) -> dict[str, AttackResult]:
    """The results that count for a side, by the identity of their attack."""
    own = (result for result in sample.results if not pick.attacks or result.attack.kind in pick.attacks)
    return {attack_identity(result.attack): result for result in own}


def _used(claim: Claim, sides: Sequence[list[Sample]]) -> list[list[Sample]]:
    """The sides with the results that are compared: of the attacks that every target met.

    Sides that name different attacks (a claim about attacks) keep their own, each on all of its targets.
    """
    picks = [pick for pick, _ in claim.sides]
    found = [[_of_kinds(sample, pick) for sample in side] for side, pick in zip(sides, picks, strict=True)]
    common = [set.intersection(*(set(own) for own in side)) for side in found]
    if len({pick.attacks for pick in picks}) == 1:
        common = [set.intersection(*common)] * len(common)
    if not all(common):
        raise _NotMeasuredError("no attack met every target of both sides")
    return [
        [
            Sample(sample.target, tuple(result for name, result in own.items() if name in names))
            for sample, own in zip(side, results, strict=True)
        ]
        for side, results, names in zip(sides, found, common, strict=True)
    ]


def _strongest_values(sample: Sample, metric: str, source: Source) -> Array:
    """One value per victim: that of the attack which gave most away."""
    tables = []
    for result in sample.results:
        own = source.values(result)
        if metric not in own:
            raise _NotMeasuredError(f"{metric} was not computed")
        tables.append(np.atleast_1d(own[metric].double().numpy()))
    together = np.stack(tables)
    return np.asarray(together.max(0) if sample.results[0].directions.get(metric) == "high" else together.min(0))


def _side(samples: Sequence[Sample], metric: str, source: Source, measured: Measured) -> _Side:
    if is_of_targets(metric, measured):
        own = {s.target.key: s.target.accuracy for s in samples} if metric == ACCURACY else measured[metric]
        samples = [sample for sample in samples if own.get(sample.target.key) is not None]
        if not samples:
            raise _NotMeasuredError(f"{metric} was not measured")
        values = [np.array([own[sample.target.key]], dtype=float) for sample in samples]
    else:
        values = [_strongest_values(sample, metric, source) for sample in samples]
    if not all(np.isfinite(own).all() for own in values):
        raise _NotMeasuredError(f"{metric} is not finite for every victim")
    return _Side(
        tuple(sample.target.seed for sample in samples),
        tuple(sample.target.accuracy for sample in samples),
        tuple(values),
        tuple(sample.results[0].victims if sample.results else "" for sample in samples),
    )


def evidence_for(claim: Claim, source: Source, measured: Measured | None = None) -> Evidence:
    """What was measured for a claim, seeds × victims, and every doubt about it."""
    measured = measured or {}
    sides = [source.samples(pick) for pick, _ in claim.sides]
    doubts = [
        Doubt(DoubtKind.WEAKENED_RIVAL, text)
        for text in dict.fromkeys(text for side in sides for sample in side for text in weakened(sample.target.defense))
    ]
    try:
        if not all(sides):
            raise _NotMeasuredError("one side was not run")
        if not is_of_targets(claim.metric, measured):
            sides = _used(claim, sides)
            for side, (pick, _) in zip(sides, claim.sides, strict=True):
                doubts += _doubts(claim, pick, side)
        found = [_side(side, metric, source, measured) for side, (_, metric) in zip(sides, claim.sides, strict=True)]
        fewest = min(len(set(side.seeds)) for side in found)
        if fewest < LEAST_SEEDS:
            doubts.append(Doubt(DoubtKind.OTHER, f"{fewest} trainings of a side, and {LEAST_SEEDS} are the least"))
        return Evidence(_arranged(claim, found), doubts)
    except _NotMeasuredError as error:
        return Evidence(None, [Doubt(DoubtKind.NOT_MEASURED, str(error)), *doubts])


def _arranged(claim: Claim, found: Sequence[_Side]) -> Tables | Matched | Adjusted:
    """Both sides as the judge takes them."""
    if claim.adjusted and len(found) == 2:
        return Adjusted(found[0].points, found[1].points)
    if claim.matched and len(found) == 2:
        return Matched(found[0].points, found[1].points)
    for side in found:
        if len(set(side.seeds)) < len(side.seeds):
            raise _NotMeasuredError("several targets of one seed fit one side, so that it is not one thing")
    left = found[0]
    shift = {"more": claim.margin, "less": -claim.margin}.get(claim.direction, 0.0)
    if len(found) == 1:
        table = left.table(left.seeds)
        if claim.spread:
            table = _deviations(table)
        assert not isinstance(claim.right, Pick)
        return Tables(table + shift, np.full_like(table, float(claim.right)), redrawn=left.redrawn)
    right = found[1]
    shared = [seed for seed in left.seeds if seed in right.seeds]
    paired = len(shared) > 1 and not claim.spread
    a, b = left.table(shared if paired else left.seeds), right.table(shared if paired else right.seeds)
    if claim.spread:
        return Tables(_deviations(a) + shift, _deviations(b), paired=False)
    same = set(left.victims) == set(right.victims)
    if not same or a.shape[1] != b.shape[1]:  # each side has victims of its own: only means can be compared
        a, b = a.mean(1, keepdims=True), b.mean(1, keepdims=True)
    return Tables(a + shift, b, paired=paired, redrawn=left.redrawn)


def _deviations(table: Array) -> Array:
    means = table.mean(1, keepdims=True)
    return np.asarray(np.abs(means - np.median(means)))


def _doubts(claim: Claim, pick: Pick, samples: Sequence[Sample]) -> list[Doubt]:
    """What says that the strongest attack on a side could be stronger, or proves nothing."""
    found: dict[tuple[DoubtKind, str], set[int]] = {}
    for sample in samples:
        best = max(sample.results, key=lambda result: result.leak)
        for kind, why in _reasons(claim, best, sample.results, recipe=pick.as_published(best.attack)):
            found.setdefault((kind, f"{best.attack.kind} on {pick.title}: {why}"), set()).add(sample.target.seed)
    count = len({sample.target.seed for sample in samples})
    return [Doubt(kind, f"{why} ({len(seeds)} of {count} seeds)") for (kind, why), seeds in found.items()]


def _reasons(
    claim: Claim, best: AttackResult, results: Sequence[AttackResult], *, recipe: bool
) -> Iterable[tuple[DoubtKind, str]]:
    """`recipe`: the claim names the attack, and it ran with its own settings: what is asked is what that gives."""
    # Compared at one accuracy, a collapsed one is no excuse and no merit.
    excused = _OF_SINGLE_VICTIMS | ({FlagId.ACCURACY_COLLAPSED} if claim.matched or claim.adjusted else set())
    excused |= _MORE_IS_THERE if recipe else set()
    for flag in best.flags:
        if flag.blocks and flag.id not in excused:
            yield _DOUBTS.get(flag.id, DoubtKind.OTHER), flag.id.value
    missed = [one.flag for one in best.controls if one.kind is Control.POSITIVE and not one.passed]
    if any(flag not in excused for flag in missed):
        yield DoubtKind.CONTROL_FAILED, "the positive control was not passed"
    others = [result for result in results if not result.traits.linear]
    beaten = [any(flag.id is FlagId.LINEAR_BEATS_STRONG for flag in result.flags) for result in others]
    if best.traits.linear and beaten and all(beaten):
        yield DoubtKind.LINEAR_BEATS_STRONG, "a linear attack beats every trained one"


def decide(claims: Sequence[Claim], source: Source, measured: Measured | None = None) -> tuple[Decided, ...]:
    """The verdicts on all claims of a part, as if it were the whole page; `decided_together` rules on the page."""
    return decided([stats.examine(claim.judged, evidence_for(claim, source, measured)) for claim in claims])
