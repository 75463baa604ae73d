"""Scores that were in the store before a run, computed again from the reconstructions they are said to be of.

Hashes find damage; whoever may write to a store can write new hashes too. So a gate whose store is not signed
believes no score it finds: it has the reconstructions, and scoring them takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.core.attack import Attack
from leakscope.core.errors import RunFailed
from leakscope.core.reports import Provenance
from leakscope.core.results import to_json
from leakscope.core.spec import label
from leakscope.experiments.experiment import AttackSpec, TargetSpec, score_key
from leakscope.experiments.plan import Plan
from leakscope.experiments.reading import read_result
from leakscope.experiments.stages import Case, read_rebuilt, scored, train_target, values_of
from leakscope.experiments.workplace import Workplace
from leakscope.store import Store
from leakscope.store.sealing import secret

#: Other machines and numbers of threads round otherwise (by less than 1e-5 where it was measured).
CLOSE = 1e-3
#: Fields of a result that do not come from its reconstruction.
_NOT_SCORED = {"command", "by", "controls", "flags"}


@dataclass(frozen=True)
class Found:
    """The results of a plan that its store had before the run."""

    plan: Plan
    pairs: tuple[tuple[TargetSpec, Attack], ...]

    @classmethod
    def before(cls, plan: Plan, store: Store) -> Found:
        """Look before anything runs; scores that a gate could not compute again are thrown away."""
        there, found = store.keys("result"), []
        for target in plan.targets:
            for attack in plan.attacks_on(target):
                rebuilt, key = _keys(plan, target, attack)
                if key not in there:
                    continue
                if _believes_nothing(plan) and store.get_whole("attack", rebuilt) is None:
                    store.discard("result", key)
                else:
                    found.append((target, attack))
        return cls(plan, tuple(found))

    def checked(self, place: Workplace) -> Provenance:
        """Where the results of the plan come from; with a gate and no signatures, their scores are computed again."""
        again = _believes_nothing(self.plan)
        if again:
            for target, attack in self.pairs:
                _require_same(self.plan, target, attack, place)
        return Provenance(
            self.plan.results, len(self.pairs), rescored=again and bool(self.pairs), signed=secret() is not None
        )


def _believes_nothing(plan: Plan) -> bool:
    """Whether this is a gate on a store that is not signed."""
    return plan.gate is not None and secret() is None


def _keys(plan: Plan, target: TargetSpec, attack: Attack) -> tuple[str, str]:
    """Where the reconstruction and its scores are kept."""
    scene = plan.scene
    key = AttackSpec(target.key, scene.threat, attack, target.seed).key(scene.victims(target.seed).digest())
    return key, score_key(key, scene.metrics, scene.goal.judged_by(scene))


def _require_same(plan: Plan, target: TargetSpec, attack: Attack, place: Workplace) -> None:
    """Refuse a result that is not what its reconstruction gives."""
    rebuilt_key, key = _keys(plan, target, attack)
    stored = read_result(place.store, key)
    case = Case.of(plan.scene, train_target(plan.scene, target, place), attack)
    rebuilt = read_rebuilt(place.store, rebuilt_key)
    assert rebuilt is not None  # scores without them were thrown away before
    result, values = scored(case, rebuilt, place)
    kept = values_of(place.store, stored)
    numbers = kept.keys() == values.keys() and all(
        _alike(kept[name].flatten().tolist(), values[name].flatten().tolist()) for name in values
    )
    if not numbers or not _alike(_of_scores(to_json(stored)), _of_scores(to_json(result))):
        raise RunFailed(
            f"{place.store.root} says that {label(attack)} leaks {stored.leak:.3f} (seed {target.seed}) and its "
            f"reconstructions give {result.leak:.3f}: somebody changed the store, or it was made by other versions; "
            "choose a new --store"
        )


def _of_scores(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain.items() if name not in _NOT_SCORED}


def _alike(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal but for rounding."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        both_odd = math.isnan(one) and math.isnan(other)
        slack = 1 if isinstance(one, int) and isinstance(other, int) else CLOSE  # a count: one victim at its edge
        return both_odd or one == other or math.isclose(one, other, rel_tol=CLOSE, abs_tol=slack)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return _all_alike(one, other)
    return bool(one == other)


def _all_alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))
