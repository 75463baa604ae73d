"""Flags: reasons to doubt a number, found by comparing results with each other. Pure: results in, results out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from leakscope.core.results import AttackResult, Diagnostics, Flag, TargetRecord
from leakscope.core.words import FlagId

#: An objective still improving by this share over the last fifth of the budget has not converged.
STILL_IMPROVING = 0.1
#: Differences of leak below this are ties.
TIE = 0.05
#: Reconstructions must not fit the pictures of other victims better than this.
MISMATCHED = 0.05
#: Points of accuracy a defence may cost before its privacy stops counting.
COLLAPSE = 0.1
#: Share of its reconstructions that an attack with gradients must make its own target accept.
ACCEPTED = 0.9
#: The best attack must come this near to what the label alone tells, or it is blind.
BLIND = 0.02
#: Below this mean, a victim whose own picture was rebuilt almost whole is an exception that the mean hides.
EXPOSED_MEAN = 0.5
#: Share of right labels by which what was observed may fall short of what the network was credited with …
SHORTFALL = 0.1
#: Shares of pictures told apart by their release between which some are treated as others are not.
UNEVEN = (0.02, 0.9)
#: A release from which this share of small changes, or of the parts of mosaics, can be read holds the picture …
FOLLOWS = 0.5
#: … of which mosaics are asked where small changes tell less than this: codes follow none.
FOLLOWS_LITTLE = 0.2
#: What an attack must read beyond the label of such a release when no noise is there to stop it.
UNREAD = 0.15
#: Share of features that tell pictures apart which the server may do without.
UNUSED = 0.3
#: Where it can do without nearly all, no noise hides small changes, mosaics are read, or symbols tell pictures apart,
#: attacks must read this much.
NEARLY_ALL, READ = 0.8, 0.5
#: Share of released features that may be chaotic: more are a code, not features.
CHAOTIC = 0.05
#: The goal whose leak is that of classes: what a network learnt of people, not what it releases of a picture.
CLASSES = "identities"
#: Blocks a flag names; a failure spreads from the first to all that are peeled after it.
_NAMED = 3


def still_improving(diagnostics: Diagnostics) -> bool:
    """Whether the curve improves by more than a tenth of its value over its last fifth.

    An attack with its own stopping rule counts as converged when that rule stopped it.
    """
    if diagnostics.converged is not None:
        return not diagnostics.converged
    curve = diagnostics.curve
    if len(curve) < 5:
        return False
    before, last = curve[-1 - len(curve) // 5], curve[-1]
    gained = before - last if diagnostics.curve_falls else last - before
    return before > 0 and gained / before > STILL_IMPROVING


def with_flags(
    target: TargetRecord, results: Sequence[AttackResult], twin_accuracy: float | None = None
) -> list[AttackResult]:
    """The results of one target under one threat, each with every flag that it, its controls and its rivals raise."""
    against = _across(results)
    blind, linear = _blind(results), _only_linear(results)
    label_only = _label_at_most(results, TIE if target.random_release else UNREAD)
    best = max((r.leak for r in results), default=1.0)
    unread, unused = target.follows > FOLLOWS and label_only, target.unused > UNUSED and label_only
    unread |= (target.plainly > FOLLOWS or target.mosaics > FOLLOWS or target.spelt > UNEVEN[1]) and best < READ
    unused |= target.unused > NEARLY_ALL and best < READ
    missed = target.server_leak is not None and target.server_leak > best + TIE
    if any(result.goal == CLASSES for result in results):
        missed = unread = unused = False  # how well a class is known says nothing of what single pictures release
    lost = target.has_use and collapsed(
        target.accuracy, twin_accuracy, len(target.classes) if target.utility is None else None
    )
    flagged = []
    for result in results:
        where = f"{result.attack.label} on {target.defense.label} at {target.cut}, seed {result.seed}"
        raised = dict.fromkeys((*_own(result, target), *against[result.key]), where)
        raised |= {c.flag: c.where or c.attack for c in result.controls if c.flag is not None and not c.passed}
        place = f"{target.defense.label} at {target.cut}, seed {target.seed}"
        shared = _of_target(result, target, blind=blind, linear=linear, missed=missed, unread=unread, unused=unused)
        raised |= dict.fromkeys(shared, place)
        if lost:
            raised[FlagId.ACCURACY_COLLAPSED] = f"{target.defense.label} at {target.cut}"
        named = {flag: _with_blocks(flag, place, result.diagnostics) for flag, place in raised.items()}
        flags = tuple(Flag(flag, place, result.key) for flag, place in named.items())
        flagged.append(replace(result, flags=flags))
    return flagged


def _blind(results: Sequence[AttackResult]) -> bool:
    """Whether no attack reaches the class mean of the label that the server reads from the same features."""
    floors = [result.label_floor for result in results if result.label_floor is not None]
    return bool(floors) and max(result.leak for result in results) < max(floors) - BLIND


def _label_at_most(results: Sequence[AttackResult], margin: float) -> bool:
    """Whether no attack tells more, by `margin`, than the label that the server reads from the same features."""
    floors = [result.label_floor for result in results if result.label_floor is not None]
    return bool(floors) and max(result.leak for result in results) < max(floors) + margin


def _only_linear(results: Sequence[AttackResult]) -> bool:
    """Whether every attack that is trained or searches loses to a linear one."""
    linear = max((result.leak for result in results if result.traits.linear), default=None)
    others = [result.leak for result in results if not result.traits.linear]
    return linear is not None and bool(others) and linear > max(others) + BLIND


def _of_target(
    result: AttackResult, target: TargetRecord, *, blind: bool, linear: bool, missed: bool, unread: bool, unused: bool
) -> Iterable[FlagId]:
    """Flags of all results of a target."""
    if blind:
        yield FlagId.BLIND
    if linear:
        yield FlagId.LINEAR_BEATS_ALL
    if target.batch_dependent:
        yield FlagId.BATCH_DEPENDENT
    if missed:
        yield FlagId.SERVER_SEES_MORE
    if unread:
        yield FlagId.UNREAD
    if unused:
        yield FlagId.UNUSED
    if target.undone:
        yield FlagId.UNDONE
    if target.opaque:
        yield FlagId.OPAQUE
    if target.unsteady:
        yield FlagId.UNSTEADY
    if UNEVEN[0] < target.told_apart < UNEVEN[1]:
        yield FlagId.UNEVEN
    if target.chaotic > CHAOTIC:
        yield FlagId.CHAOTIC
    if result.exposed and result.leak < EXPOSED_MEAN:
        yield FlagId.VICTIMS_EXPOSED
    if result.strays:
        yield FlagId.RELEASE_DIFFERS
    seen, credited = result.observed_accuracy, target.accuracy
    if seen is not None and credited is not None and target.has_use:
        # Two standard errors of a share of n victims, beside the shortfall.
        n = result.metrics["leak"].n
        if seen < credited - SHORTFALL - 2 * (credited * (1 - credited) / n) ** 0.5:
            yield FlagId.RELEASE_DIFFERS


def _own(result: AttackResult, target: TargetRecord) -> Iterable[FlagId]:
    """Flags that one result shows by itself."""
    found, leaky = result.diagnostics, result.leak > 1 - TIE
    # An attack that says what it left unexplained is judged beside the others; see `_across`.
    if found.diverged > 0 and found.unexplained is None:
        yield FlagId.DIVERGED
    if still_improving(found) and not leaky:  # a result at the ceiling needs no more convergence
        yield FlagId.NOT_CONVERGED
    if found.zero_gradient > 0:
        yield FlagId.ZERO_GRADIENT
    if target.random_release and not (result.traits.averages_noise or result.traits.outside):
        yield FlagId.NOISE_NOT_AVERAGED
    if result.mismatched > MISMATCHED:
        yield FlagId.NEGATIVE_CONTROL
    accepted = result.metrics.get("target-accuracy")
    if accepted is not None and result.traits.white_box and accepted.mean < ACCEPTED:
        yield FlagId.TARGET_UNCONVINCED


def _failure(result: AttackResult) -> FlagId | None:
    """The flag of an attack whose result does not explain its features, if no other attack on the target does."""
    found = result.diagnostics
    if found.unexplained is None:
        return None
    if found.diverged > 0:
        return FlagId.DIVERGED
    # A result at the ceiling needs no more convergence; one still improving is flagged by its curve.
    open_ended = found.unexplained > 0 and result.leak <= 1 - TIE
    return FlagId.NOT_CONVERGED if open_ended and not still_improving(found) else None


def _across(results: Sequence[AttackResult]) -> dict[str, list[FlagId]]:
    """Flags that results on one target raise against each other, by result key."""
    sound = [r.leak for r in results if not r.diagnostics.unexplained and not r.diagnostics.diverged]
    explained = max(sound, default=None)
    linear = max((r.leak for r in results if r.traits.linear), default=None)
    black = max((r.leak for r in results if not r.traits.white_box), default=None)
    found: dict[str, list[FlagId]] = {}
    for result in results:
        raised = found.setdefault(result.key, [])
        failure = _failure(result)
        if failure is not None:
            # Its failure counts for nothing, unless an attack that did explain the features stands in for it.
            covered = explained is not None and explained >= result.leak - TIE
            raised.append(FlagId.FEATURES_UNEXPLAINED if covered else failure)
        if linear is not None and not result.traits.linear and linear > result.leak + TIE:
            raised.append(FlagId.LINEAR_BEATS_STRONG)
        if black is not None and result.traits.white_box and black > result.leak + TIE:
            raised.append(FlagId.BLACK_BOX_WINS)
    return found


def _with_blocks(flag: FlagId, where: str, found: Diagnostics) -> str:
    """The place of a flag with the blocks it was raised for, where an attack names them."""
    named = {
        FlagId.DIVERGED: found.diverged_blocks,
        FlagId.NOT_CONVERGED: found.unexplained_blocks,
        FlagId.FEATURES_UNEXPLAINED: found.diverged_blocks or found.unexplained_blocks,
    }
    blocks = named.get(flag, ())
    if not blocks:
        return where
    shown = ", ".join(blocks[:_NAMED]) + (f" and {len(blocks) - _NAMED} more" if len(blocks) > _NAMED else "")
    return f"{where}, {'block' if len(blocks) == 1 else 'blocks'} {shown}"


def collapsed(accuracy: float | None, twin: float | None, classes: int | None) -> bool:
    """Whether a target lost its use: near chance (where there are classes), or far below its undefended twin."""
    if accuracy is None:
        return False
    return (classes is not None and accuracy < 1.5 / classes) or (twin is not None and accuracy < twin - COLLAPSE)
