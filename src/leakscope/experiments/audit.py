"""A finished audit, folded from what the store holds: targets, results, controls, flags, evidence, verdict."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version

import torch
from torch import Tensor

from leakscope.auditing.evidence import Shown, level_of
from leakscope.auditing.flags import TIE
from leakscope.auditing.headline import Leaks, exposed, headline, over_seeds
from leakscope.auditing.verdict import judge
from leakscope.core import progress
from leakscope.core.attack import Attack
from leakscope.core.defense import Defense, members
from leakscope.core.reports import (
    AuditReport,
    ControlReport,
    DataRecord,
    GroupReport,
    PartRecord,
    Provenance,
    ShownPictures,
    TargetReport,
)
from leakscope.core.results import (
    AttackResult,
    ControlResult,
    Finding,
    Flag,
    MetricInfo,
    Summary,
    TargetRecord,
    from_json,
)
from leakscope.core.spec import describe, digest
from leakscope.core.words import Control
from leakscope.experiments.blocks import read_blocks
from leakscope.experiments.bounds import read_bound
from leakscope.experiments.experiment import AttackSpec, TargetSpec, control_key, score_key
from leakscope.experiments.finished import Audit
from leakscope.experiments.floors import floors_key
from leakscope.experiments.jobs import check_key
from leakscope.experiments.plan import Plan
from leakscope.experiments.reading import flagged, read_controls, read_result, read_target, strongest
from leakscope.experiments.scene import Scene, threat_record
from leakscope.experiments.stages import SCALE, read_rebuilt, summaries, values_of
from leakscope.experiments.submissions import outside_results
from leakscope.stats.summaries import own_leaks
from leakscope.store import Store

#: Pictures shown at each end and in the middle of the ranking.
SHOWN = 4


@dataclass(frozen=True)
class _Found:
    """What the store holds of one target."""

    spec: TargetSpec
    record: TargetRecord
    results: tuple[AttackResult, ...]


def results_of(plan: Plan, target: TargetSpec, store: Store) -> list[AttackResult]:
    """Every planned result of a target, in the order of the suite, then what others handed in."""
    scene = plan.scene
    judge_key = scene.goal.judged_by(scene)
    found = []
    for attack in plan.attacks_on(target):
        victims = scene.victims(target.seed).digest()
        key = AttackSpec(target.key, scene.threat, attack, target.seed).key(victims)
        found.append(read_result(store, score_key(key, scene.metrics, judge_key)))
    return found


def strongest_attacks(plan: Plan, store: Store) -> dict[str, tuple[Attack, AttackResult]]:
    """By target key, the attack of ours that rebuilt most there among those that are trained or search."""
    found = {}
    for target in plan.targets:
        pairs = list(zip(plan.attacks_on(target), results_of(plan, target, store), strict=True))
        trained = [(attack, result) for attack, result in pairs if not attack.linear] or pairs
        found[target.key] = max(trained, key=lambda pair: pair[1].leak)
    return found


def fold(plan: Plan, store: Store, *, command: str, seconds: float, provenance: Provenance | None = None) -> Audit:
    """The audit of a plan whose jobs are done. Nothing is computed but summaries."""
    scene = plan.scene
    controls = _controls(plan, store)
    found = _found(plan, store, controls)
    results = tuple(result for own in found for result in own.results)
    ceiling, ceilings = scene.goal.ceiling(scene, store), scene.goal.ceilings(scene, store)
    reports = tuple(
        replace(report, ceiling=ceiling, ceilings=ceilings) if report.kind is Control.POSITIVE else report
        for report in scene.goal.control_reports(results, controls)
    )
    targets, maps = _targets(scene, found, store)
    flags = _flags(scene, results)
    reached = level_of(_shown(plan, found, reports))
    groups = _groups(found, store)
    judged = judge(targets, groups, flags, reached, plan.gate, scene.goal.found)
    shown, images = _pictures(scene, results, store)
    report = AuditReport(
        verdict=judged.verdict,
        sentence=judged.sentence,
        reasons=judged.reasons,
        gate=judged.gate,
        exit_code=judged.verdict.exit_code,
        evidence=reached,
        seconds=round(seconds, 2),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        goal=scene.goal.kind_name,
        goal_what=scene.goal.what,
        threat=threat_record(scene.threat),
        data=_data(scene),
        config=plan.resolved_config(),
        versions={
            "leakscope": version("leakscope"), "torch": torch.__version__, "python": platform.python_version(),
        },
        targets=targets,
        groups=groups,
        results=results,
        left_out=tuple(plan.left_out),
        metrics=_metrics(scene),
        floors=_floors(plan, store),
        controls=reports,
        flags=flags,
        pictures=shown,
        provenance=provenance,
    )  # fmt: skip
    return Audit(report, images | maps)


def _controls(plan: Plan, store: Store) -> list[ControlResult]:
    """The positive control of every attack, and, for E2, the checks of each target's strongest."""
    scene, first = plan.scene, plan.targets[0]
    found = [
        control
        for attack in plan.attacks
        for control in read_controls(
            store,
            control_key(
                attack, scene.threat, first.splits, first.model, len(scene.first_victims), scene.goal.judged_by(scene)
            ),
        )
    ]
    if plan.config.evidence == "E2":
        for _, result in strongest_attacks(plan, store).values():
            found += read_controls(store, check_key(result))
    return found


def _found(plan: Plan, store: Store, controls: Sequence[ControlResult]) -> list[_Found]:
    records, results = {}, []
    for spec in plan.targets:
        record = read_target(store, spec.key)
        assert record is not None
        twin = record.undefended or (spec.undefended and plan.explicit_twin)
        records[spec.key] = replace(record, undefended=twin)
        for result in results_of(plan, spec, store) + outside_results(plan.scene, spec, store):
            own = [
                c for c in controls if c.result == result.key or (c.result is None and c.attack == result.attack.label)
            ]
            results.append(replace(result, controls=tuple(own)))
    entries: dict[str, list[Finding]] = {}
    for entry in flagged(records, results):
        entries.setdefault(entry.target.key, []).append(entry)
    order = {result.key: number for number, result in enumerate(results)}
    return [
        _Found(
            spec, records[spec.key],
            tuple(sorted((e.result for e in entries[spec.key]), key=lambda result: order[result.key])),
        )
        for spec in plan.targets
    ]  # fmt: skip


def _targets(scene: Scene, found: Sequence[_Found], store: Store) -> tuple[tuple[TargetReport, ...], dict[str, Tensor]]:
    reports: list[TargetReport] = []
    maps: dict[str, Tensor] = {}
    for own in found:
        ours = [result.key for result in own.results if not result.traits.outside]
        blocks, drawn = read_blocks(store, ours)
        maps |= {f"maps/{key}": tensor for key, tensor in drawn.items()}
        reports.append(
            TargetReport(
                record=own.record,
                strongest=strongest(own.results).key,
                worst_case=_worst_case(scene, own.results, store),
                exposed=exposed(leaks_of(own.results, store)),
                bound=read_bound(store, own.spec.key),
                blocks=blocks,
            )
        )
    return tuple(reports), maps


def leaks_of(results: Sequence[AttackResult], store: Store) -> Leaks:
    """The leak of every victim under each attack."""
    values = [values_of(store, result) for result in results]
    scale = values[0].get(SCALE)
    stacked = torch.stack([own["leak"] for own in values]).double().numpy()
    return Leaks(stacked, None if scale is None else scale.double().numpy())


def _worst_case(scene: Scene, results: Sequence[AttackResult], store: Store) -> dict[str, Summary]:
    """The leak of the strongest attack, corrected for having been chosen; other metrics by each victim's worst."""
    values = [values_of(store, result) for result in results]
    merged = {}
    for metric in scene.metrics:
        if not metric.of_set and metric.name != "leak":
            stacked = torch.stack([own[metric.name] for own in values])
            merged[metric.name] = stacked.amax(0) if metric.more_leak == "high" else stacked.amin(0)
    others = [metric for metric in scene.metrics if metric.name != "leak"]
    return {"leak": headline(leaks_of(results, store)), **summaries(merged, others)}


def _groups(found: Sequence[_Found], store: Store) -> tuple[GroupReport, ...]:
    """The seeds of each network, cut and defence together."""
    grouped: dict[str, list[_Found]] = {}
    for own in found:
        which = [own.spec.model, own.spec.cut, describe(own.spec.defense), own.spec.stop]
        grouped.setdefault(digest(which), []).append(own)
    groups = []
    for seeds in grouped.values():
        leak, share = over_seeds([leaks_of(own.results, store) for own in seeds])
        first = seeds[0].record
        keys = tuple(own.record.key for own in seeds)
        groups.append(GroupReport(first.name, keys, first.undefended, leak, share))
    return tuple(groups)


def _flags(scene: Scene, results: Sequence[AttackResult]) -> tuple[Flag, ...]:
    """Every flag once for each place where it was raised."""
    raised = [*scene.goal.flags(scene), *(flag for result in results for flag in result.flags)]
    return tuple({(flag.id, flag.where): flag for flag in reversed(raised)}.values())[::-1]


def _adaptive(defense: Defense, attacks: Sequence[Attack]) -> bool:
    """Whether a defence meets an attack that trains on what it releases, and those made against its parts.

    Attacks that a third-party defence names itself are added to the suite but do not count here.
    """
    present = {attack.kind_name for attack in attacks}
    ours = [part for part in members(defense) if type(part).__module__.startswith("leakscope.defenses.")]
    met = all(part.kind_name == "none" or present & set(part.adaptive) for part in ours)
    return met and any(attack.adapts for attack in attacks)


def _contests(result: AttackResult) -> bool:
    """Whether an outside attack rebuilds more than the label tells; otherwise it is no evidence."""
    floor = 0.0 if result.label_floor is None else result.label_floor
    return result.traits.outside and result.leak > floor


def _serves(own: _Found, plan: Plan) -> bool:
    """Whether a twin shows what a defence hides: for a network from elsewhere, only if attacks succeed on it."""
    if not plan.scene.architecture.foreign:
        return True
    floors = [result.label_floor for result in own.results if result.label_floor is not None]
    return max(result.leak for result in own.results) > max(floors, default=0.0) + TIE


def _shown(plan: Plan, found: Sequence[_Found], reports: Sequence[ControlReport]) -> Shown:
    passed = {report.kind: bool(report.passed) for report in reports}
    defended = [own for own in found if not own.record.undefended] or list(found)
    return Shown(
        attacks=len(plan.attacks),
        full_suite=plan.suite == "full" and all(any(attack.adapts for attack in own) for own in plan.suited.values()),
        seeds=len(plan.seeds),
        positive=passed[Control.POSITIVE],
        negative=passed[Control.NEGATIVE],
        twin=any(own.record.undefended and _serves(own, plan) for own in found),
        adaptive=plan.scene.threat.knows_defense
        and all(_adaptive(defense, own) for (_, defense), own in plan.suited.items()),
        canary=passed.get(Control.CANARY, Control.CANARY not in plan.scene.goal.control_words),
        flat_budget=passed.get(Control.BUDGET, False),
        contested=all(any(_contests(result) for result in own.results) for own in defended),
    )


def _data(scene: Scene) -> DataRecord:
    parts = {name: PartRecord(len(part), part.digest()) for name, part in vars(scene.splits).items()}
    return DataRecord(
        name=scene.short_data_name, shape=scene.splits.private.shape, classes=len(scene.splits.private.classes),
        victims=len(scene.first_victims), victims_from=scene.config.chosen_victims.source,
        trained_on=scene.trained_on, **parts,
    )  # fmt: skip


def _metrics(scene: Scene) -> tuple[MetricInfo, ...]:
    missing = (MetricInfo(name, "high", "", unavailable=why) for name, why in scene.unavailable.items())
    return (*(metric.info for metric in scene.metrics), *missing)


def _floors(plan: Plan, store: Store) -> dict[str, dict[str, Summary]]:
    entry = store.get("floors", floors_key(plan.scene, plan.attacks))
    assert entry is not None
    return {
        name: {metric: from_json(Summary, value) for metric, value in own.items()}
        for name, own in entry.record["floors"].items()
    }


def _pictures(
    scene: Scene, results: Sequence[AttackResult], store: Store
) -> tuple[dict[str, ShownPictures], dict[str, Tensor]]:
    """For every result the pictures at the most leaked decile, the median and the least leaked decile.

    Scores may be in a store without their pictures (unpacked, or thrown away): such results show none.
    """
    if not scene.first_victims.pixels:
        return {}, {}
    described, tensors = {}, {}
    for result in results:
        rebuilt = read_rebuilt(store, result.reconstruction)
        if rebuilt is None:
            continue
        values = values_of(store, result)
        leak, scale = values["leak"], values.get(SCALE)
        if scale is not None and float(scale.sum()) > 0:  # each against its own class mean, as `worst` is
            leak = torch.from_numpy(own_leaks(leak.double().numpy(), scale.double().numpy()))
        shown, index = _chosen(leak)
        described[result.key] = shown
        guess = rebuilt.images
        each_guess = guess[:: len(guess) // len(leak)]  # the first of each identity's
        for name, images in (("truth", scene.victims(result.seed).images), ("guess", each_guess)):
            tensors[f"{name}/{result.key}"] = (images[index] * 255).round().to(torch.uint8)
    if len(described) < len(results):
        count = len(results) - len(described)
        progress.say(f"the pictures of {count} of {len(results)} results are not in {store.root}, and not shown")
    return described, tensors


def _chosen(leak: Tensor) -> tuple[ShownPictures, Tensor]:
    order = leak.argsort(descending=True)
    count = len(order)
    first_chosen = order[:1].tolist()
    each = min(SHOWN, max(1, count // 3))
    starts = {"most leaked": count // 10, "median": count // 2, "least leaked": count - count // 10}
    chosen: list[int] = first_chosen
    groups: list[str] = ["worst"]
    for group, centre in starts.items():
        first = min(max(centre - each // 2, 0), count - each)
        chosen += order[first : first + each].tolist()
        groups += [group] * each
    index = torch.tensor(chosen)
    return ShownPictures(tuple(groups), tuple(leak[index].tolist()), tuple(chosen)), index
