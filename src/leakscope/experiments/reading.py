"""Finished results from the store, each with its target, its controls and its flags: doubt travels with the number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from leakscope.auditing.flags import with_flags
from leakscope.core.errors import UsageError
from leakscope.core.results import AttackResult, ControlResult, Finding, TargetRecord, from_json
from leakscope.core.spec import Plain
from leakscope.store import Store


def read_result(store: Store, key: str) -> AttackResult:
    """One result as it was scored, without controls and flags."""
    entry = store.get("result", key)
    if entry is None:
        raise UsageError(f"the store {store.root} holds no result {key}; run the command again")
    return from_json(AttackResult, entry.record["summary"], f"result {key} of the store")


def read_target(store: Store, key: str) -> TargetRecord | None:
    entry = store.get("target", key)
    return None if entry is None else from_json(TargetRecord, entry.record["summary"], f"target {key} of the store")


@dataclass(frozen=True)
class Trained:
    """What pages tell of a training. A pack holds it in place of the weights."""

    seconds: float
    accuracy: float | None  # on its own pictures, in the last epoch


def read_trained(store: Store, key: str) -> Trained | None:
    """By the weights that are in the store, or that were in the one that a pack was made of."""
    entry = store.get("trained", key)
    if entry is None:
        told = store.get("training", key)
        return None if told is None else from_json(Trained, told.record, f"training {key} of the store")
    history = entry.record["history"]
    accuracies = history.get("accuracy")
    return Trained(float(history["seconds"]), float(accuracies[-1]) if accuracies else None)


def read_controls(store: Store, key: str) -> tuple[ControlResult, ...]:
    """The outcome of a control job; empty when it was not run."""
    entry = store.get("control", key)
    return () if entry is None else _controls(entry.record["summary"])


def _controls(summary: Plain) -> tuple[ControlResult, ...]:
    return tuple(from_json(ControlResult, control) for control in summary["controls"])


def read_entries(store: Store) -> list[Finding]:
    """Every result of a store with its target; controls and flags are joined, whoever computed them."""
    targets = {
        key: from_json(TargetRecord, summary, f"target {key} of the store")
        for key, summary in store.summaries("target").items()
    }
    controls = {key: _controls(summary) for key, summary in store.summaries("control").items()}
    of_result: dict[str, list[ControlResult]] = defaultdict(list)
    for own in controls.values():
        for control in own:
            if control.result is not None:
                of_result[control.result].append(control)
    results = [
        from_json(AttackResult, summary, f"result {key} of the store")
        for key, summary in store.summaries("result").items()
    ]
    joined = [
        replace(result, controls=(*controls.get(result.control, ()), *of_result[result.key]))
        for result in results
        if result.target in targets
    ]
    return flagged(targets, joined)


def flagged(targets: dict[str, TargetRecord], results: Iterable[AttackResult]) -> list[Finding]:
    """Results with their flags: those on one target under one threat are compared with each other."""
    twins = {_place(target): target.accuracy for target in targets.values() if target.undefended}
    groups: dict[tuple[object, ...], list[AttackResult]] = defaultdict(list)
    for result in results:
        groups[result.target, result.threat, result.victims].append(result)
    entries = []
    for (key, *_), own in groups.items():
        target = targets[str(key)]
        entries += [Finding(target, result) for result in with_flags(target, own, twins.get(_place(target)))]
    return entries


def _place(target: TargetRecord) -> tuple[str, str, str, int]:
    return target.setting, target.model.label, target.cut, target.seed


def strongest(results: Sequence[AttackResult]) -> AttackResult:
    """The result that rebuilt most."""
    return max(results, key=lambda result: result.leak)
