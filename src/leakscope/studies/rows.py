"""Every configuration of a target as one row over seeds, and how the figures came about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leakscope.core.results import AttackResult, Method, Spread, TargetRecord
from leakscope.core.spec import describe, unusual
from leakscope.experiments.reading import read_trained
from leakscope.metrics.distribution import FrechetDistance
from leakscope.metrics.networks import EMBEDDINGS
from leakscope.stats.effects import crossed_interval
from leakscope.stats.intervals import mean_interval
from leakscope.studies.picks import attack_identity
from leakscope.studies.records import AttackRow, Number, Origin, Row

if TYPE_CHECKING:
    from leakscope.studies.study import Run, Runs


def _number(table: Sequence[Any], results: Sequence[AttackResult]) -> Number:
    """Seeds × victims (victims may be one in all) with the interval over both."""
    array = np.stack([np.atleast_1d(np.asarray(row, dtype=float)) for row in table])
    return Number.of(crossed_interval(array, redrawn=len({result.victims for result in results}) > 1))


def too_few_pictures(run: Run) -> set[str]:
    """Fréchet distances of fewer pictures than features, which are left out: they are mostly bias."""
    scene = run.plan.scene
    found = set()
    for metric in scene.metrics:
        if isinstance(metric, FrechetDistance):
            source = EMBEDDINGS[metric.network]
            embed = source.load(scene.config.data_root, torch.device("cpu"))
            if len(scene.first_victims) < embed(scene.first_victims.images[:1]).shape[1]:
                found.add(metric.name)
        elif metric.of_set and metric.kind_name == "fid-evaluator":
            found.add(metric.name)  # identities are always fewer than features
    return found


#: The variant of rows that stand for several, on data drawn anew.
REPEATED = "draws"


def rows_of(runs: Runs, repeats: str = "") -> tuple[Row, ...]:
    """All rows in the order of the configuration; a target of two variants is listed once.

    Variants that fit the pattern `repeats` are one: the same trial on data drawn anew.
    """
    groups: dict[str, tuple[str, dict[str, TargetRecord]]] = {}
    seen: set[str] = set()
    for variant, run in runs.runs.items():
        name = REPEATED if repeats and fnmatchcase(variant, repeats) else variant
        for target in run.targets.values():
            same = str((name, target.model.settings, target.defense.settings, target.cut, target.stop))
            if target.key not in seen:
                seen.add(target.key)
                groups.setdefault(same, (name, {}))[1][target.key] = target
    hidden = {name for run in runs.runs.values() for name in too_few_pictures(run)}
    return tuple(_row(name, runs, list(group.values()), hidden) for name, group in groups.values())


def _row(variant: str, runs: Runs, group: Sequence[TargetRecord], hidden: set[str]) -> Row:
    first = group[0]
    by_target = [runs.results_on(target) for target in group]
    results = [result for own in by_target for result in own]
    best = [max(own, key=lambda result: result.leak) for own in by_target]
    accuracies = tuple(target.accuracy for target in group if target.accuracy is not None)
    attacks: dict[str, list[AttackResult]] = {}
    for result in results:
        attacks.setdefault(attack_identity(result.attack), []).append(result)
    separability = [target.separability for target in group]
    return Row(
        variant=variant, model=first.model, defense=first.defense, cut=first.cut,
        seeds=tuple(target.seed for target in group), victims=best[0].metrics["leak"].n, trained=first.has_use,
        accuracies=accuracies, accuracy=Number.of(mean_interval(accuracies)) if accuracies else None,
        separability=Spread(*(fmean(getattr(own, end.name) for own in separability) for end in fields(Spread))),
        features=float(np.prod(first.feature_shape) / np.prod(first.input_shape)),
        strongest=tuple(result.attack.kind for result in best),
        worst_case=_worst_case(runs, by_target, hidden),
        most_exposed=max(result.metrics["leak"].worst for result in results),
        attacks=tuple(_attack(runs, own, hidden) for own in attacks.values()),
        doubts=tuple(sorted({flag.id.value for result in best for flag in result.flags if flag.blocks})),
        notes=first.notes, stop=first.stop,
    )  # fmt: skip


def _worst_case(runs: Runs, groups: Sequence[Sequence[AttackResult]], hidden: set[str]) -> dict[str, Number]:
    tables: dict[str, list[Any]] = {}
    for own in groups:
        values = [runs.values(result) for result in own]
        for name, direction in own[0].directions.items():
            together = [each[name].double().numpy() for each in values if name in each]
            if name not in hidden and together and np.isfinite(together).all():
                tables.setdefault(name, []).append(np.max(together, 0) if direction == "high" else np.min(together, 0))
    firsts = [own[0] for own in groups]
    return {name: _number(table, firsts) for name, table in tables.items() if len(table) == len(groups)}


def _attack(runs: Runs, results: Sequence[AttackResult], hidden: set[str]) -> AttackRow:
    values = [runs.values(result) for result in results]
    names = [n for n in results[0].metrics if n not in hidden and all(own[n].isfinite().all() for own in values)]
    worst = {
        name: (max if results[0].directions[name] == "high" else min)(r.metrics[name].worst for r in results)
        for name in names
    }
    return AttackRow(
        attack=results[0].attack,
        metrics={name: _number([own[name].double().numpy() for own in values], results) for name in names},
        deviations={name: fmean(result.metrics[name].std for result in results) for name in names},
        worst=worst,
        flags=tuple(sorted({flag.id.value for result in results for flag in result.flags})),
        cpu_seconds=fmean(result.diagnostics.cpu_seconds / max(result.metrics["leak"].n, 1) for result in results),
    )


def origin(runs: Runs, aside: str = "") -> Origin:
    """How the figures came about; `aside` is the variant that only served to choose a setting.

    CPU time is the stages' own, whether they ran now or were in the store.
    """
    reports = {variant: run.report for variant, run in runs.runs.items()}
    first = next(iter(reports.values()))
    results = {result.reconstruction: result for report in reports.values() for result in report.results}
    floors = {
        name: scores["leak"].mean for report in reports.values() for name, scores in report.floors.items()
        if "leak" in scores
    }  # fmt: skip
    return Origin(
        command=first.command,
        created=first.created,
        versions=first.versions,
        data=first.data.name,
        seeds=_seeds(runs, aside),
        victims=max(report.data.victims for report in reports.values()),
        cpu_hours=round(sum(result.diagnostics.cpu_seconds for result in results.values()) / 3600, 3),
        training_hours=round(_training_seconds(runs) / 3600, 3),
        controls={
            variant: {control.kind.value: control.passed for control in report.controls}
            for variant, report in reports.items()
        },
        verdicts={variant: report.verdict.value for variant, report in reports.items()},
        floors=floors,
        left_out=tuple(
            dict.fromkeys(
                f"{out.attack} on {out.defense}: {out.reason}" for r in reports.values() for out in r.left_out
            )
        ),
        unusual=tuple(_unusual(runs)),
    )


def _seeds(runs: Runs, aside: str) -> tuple[int, ...]:
    """The seeds that figures rest on: of all variants but the one that only served to choose a setting."""
    kept = [run for variant, run in runs.runs.items() if variant != aside] or list(runs.runs.values())
    return tuple(dict.fromkeys(seed for run in kept for seed in run.plan.seeds))


def _training_seconds(runs: Runs) -> float:
    """Of every target, and of the undefended networks that they begin with, each counted once."""
    keys = {target.trained for run in runs.runs.values() for target in run.targets.values() if target.trained}
    keys |= {spec.start.trained_key for run in runs.runs.values() for spec in run.plan.targets if spec.start}
    trained = (read_trained(runs.first.store, key) for key in keys)
    return sum(own.seconds for own in trained if own is not None)


def _unusual(runs: Runs) -> Iterable[str]:
    """Everything that ran, with each setting that differs from its default."""
    methods: dict[str, Method] = {}
    for run in runs.runs.values():
        for entry in run.entries:
            for method in (entry.target.model, entry.target.defense, entry.result.attack):
                methods[method.label] = method
    yield from dict.fromkeys(name for name, method in methods.items() if method.unusual)
    for variant, run in runs.runs.items():
        config = run.plan.scene.config
        changed = {"training": describe(unusual(config.training))}
        changed |= config.model_dump(mode="json", exclude_defaults=True, include=_OF_THE_AUDIT)
        for name, settings in changed.items():
            if settings:
                yield f"{name}{f' ({variant})' if variant else ''}: {json.dumps(settings, ensure_ascii=False)}"


#: Parts of a configuration that are no methods.
_OF_THE_AUDIT = {"resize", "splits", "threat", "pretraining", "evaluator"}


def setup(runs: Runs, aside: str = "") -> tuple[str, ...]:
    """Data, network, attacks and size, one line each."""
    run = runs.first
    scene, splits = run.plan.scene, run.plan.scene.splits
    networks = dict.fromkeys(
        f"`{target.model.label}` cut at `{target.cut}`" for run in runs.runs.values() for target in run.targets.values()
    )
    kinds = dict.fromkeys(entry.result.attack.kind for run in runs.runs.values() for entry in run.entries)
    used = {run.plan.scene.config.training.epochs for run in runs.runs.values()}
    return (
        f"**Data** {scene.data_name}: {len(splits.private)} private, {len(splits.heldout)} held-out, "
        f"{len(splits.public)} public pictures.",
        f"**Networks** {', '.join(list(networks)[:4])}{' and more' if len(networks) > 4 else ''}; epochs "
        f"{', '.join(map(str, sorted(used)))}.",
        f"**Attacks** {', '.join(f'`{kind}`' for kind in kinds)}, handed: {run.report.threat.label}.",
        f"**Size** {len(scene.first_victims)} victims, seeds {', '.join(map(str, _seeds(runs, aside)))}; every "
        f"interval is over seeds and victims.",
    )
