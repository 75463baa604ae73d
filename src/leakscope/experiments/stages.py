"""The stages of an experiment: train, prepare, reconstruct, score. Each is kept, and none is computed twice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakscope.core import progress, seeds
from leakscope.core.attack import Attack, Observed, Prepared
from leakscope.core.data import ImageSet
from leakscope.core.devices import brought
from leakscope.core.errors import UsageError
from leakscope.core.metric import Scored
from leakscope.core.model import SplitModel
from leakscope.core.results import (
    AttackResult,
    Diagnostics,
    Method,
    Spread,
    Summary,
    TargetRecord,
    Traits,
    from_json,
    to_json,
)
from leakscope.core.spec import describe, label
from leakscope.core.threat import ThreatModel, View, grant
from leakscope.experiments.experiment import AttackSpec, TargetSpec, control_key, score_key
from leakscope.experiments.pretraining import pretrained, transplant
from leakscope.experiments.priors import kept_priors
from leakscope.experiments.probes import probe, strays
from leakscope.experiments.reading import read_target
from leakscope.experiments.returned import returned
from leakscope.experiments.scene import Scene, threat_record
from leakscope.experiments.training import History, Training, predict, train
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.separability import separability
from leakscope.stats.summaries import summarize, summarize_leak
from leakscope.store import Store

#: Beside the metrics of a result: for each victim what a leak of its own is measured against.
SCALE = "scale"
#: Victims kept as pictures, to be shown beside what was rebuilt of them.
KEPT = 16


@dataclass(frozen=True)
class Target:
    """A network ready to be attacked, and what is known about it."""

    record: TargetRecord
    split: SplitModel

    @property
    def key(self) -> str:
        return self.record.key


def train_target(scene: Scene, spec: TargetSpec, place: Workplace) -> Target:
    """Stage train: the target with its defence, from the store or trained now, and what it is good for."""
    split = scene.build(spec).to(place.device)
    if spec.epochs:
        split = _trained(scene, spec, split, scene.config.training, place)
    split.eval().requires_grad_(False)
    with place.store.claim("target", spec.key) as known:
        if known is None:
            record_ = _measured(scene, spec, split, place)
            place.store.put("target", spec.key, {"summary": to_json(record_)})
    found = read_target(place.store, spec.key)
    assert found is not None
    return Target(found, split)


def _trained(scene: Scene, spec: TargetSpec, split: SplitModel, training: Training, place: Workplace) -> SplitModel:
    """The network with the weights of its run after the epoch it stops at, from the store or trained now."""
    store, run = place.store, replace(spec, stop=None)
    with store.claim("trained", spec.trained_key) as done:
        if done is None:
            if training.start is not None and spec.start is not None:
                _begin_with(_started(scene, spec.start, training.start, place), split)
            elif scene.config.pretraining is not None:
                _begin_with_public_classes(scene, spec, split, place)
            progress.say(f"training {scene.network_name} ({label(spec.defense)}) at {spec.cut}, seed {spec.seed}")

            def keep(epoch: int, network: SplitModel, history: History) -> None:
                record = {"plan": run.plain(), "history": vars(history), "notes": {"stopped_after": epoch}}
                store.put("trained", replace(spec, stop=epoch).weights_key, record, network.state_dict())

            split, history, notes = train(
                split, scene.splits.private, training, seed=spec.seed, device=place.device,
                checkpoint=store.scratch("trained", spec.trained_key) / "checkpoint.pt", reached=keep,
            )  # fmt: skip
            record = {"plan": run.plain(), "history": vars(history), "notes": notes}
            store.put("trained", spec.trained_key, record, split.state_dict())
    entry = store.get("trained", spec.weights_key)
    if entry is None:
        raise UsageError(f"its weights after epoch {spec.stop} are no longer in the store; train it in a new one")
    split.load_state_dict(entry.tensors())
    return split


def _started(scene: Scene, spec: TargetSpec, training: Training, place: Workplace) -> SplitModel:
    """The undefended network that all defences of a seed begin with."""
    return _trained(scene, spec, scene.build(spec).to(place.device), training, place)


def _begin_with(first: SplitModel, split: SplitModel) -> None:
    """Load the start weights; layers that a defence replaced keep their initial weights."""
    transplant(first.model.state_dict(), split)


def _begin_with_public_classes(scene: Scene, spec: TargetSpec, split: SplitModel, place: Workplace) -> None:
    first = scene.config.pretraining
    assert first is not None
    pictures = first.pictures(scene.splits.public, scene.config.data_root)
    # The first training does not depend on the cut; any that separates the network will do.
    cut = (scene.config.cuts or list(scene.cuts))[0]
    transplant(pretrained(scene.architecture, first, pictures, cut, spec.seed, place), split)


@torch.no_grad()
def _measured(scene: Scene, spec: TargetSpec, split: SplitModel, place: Workplace) -> TargetRecord:
    """Accuracy, calibration and feature shape of a target."""
    heldout, device = scene.splits.heldout, place.device
    rng = seeds.generator(spec.seed, "target", "accuracy", device=device)
    scores = predict(split, heldout.images, rng, device)
    if not torch.isfinite(scores).all():
        raise UsageError(f"{scene.network_name} gives scores that are NaN or infinite; give it other weights")
    sample = heldout.images[:256].to(device)
    released = split.release(sample, rng)
    again, once = (split.release(sample[:8], seeds.generator(n, "again", device=device)) for n in (1, 2))
    spread, unit = (separability(released.cpu().flatten(1), unit_norm=unit_norm) for unit_norm in (False, True))
    probed = probe(split, scene.splits.public, heldout, device)
    trained = place.store.get("trained", spec.weights_key) if spec.epochs else None
    return TargetRecord(
        key=spec.key,
        trained=None if trained is None else trained.key,
        setting=spec.setting,
        data=scene.data_name,
        model=Method.of(scene.architecture),
        defense=Method.of(spec.defense),
        cut=spec.cut,
        seed=spec.seed,
        # A network of somebody else may hold a defence of its own; see `Plan.explicit_twin`.
        undefended=spec.undefended and not scene.architecture.foreign,
        **scene.goal.use(scores, heldout, scene.utility).fields,
        input_shape=heldout.shape,
        classes=heldout.classes,
        feature_shape=tuple(released.shape[1:]),
        client_compute=scene.cuts[spec.cut].compute,
        random_release=not torch.equal(again, once),
        separability=Spread(spread.min, spread.mean, spread.max),
        unit_separability=Spread(unit.min, unit.mean, unit.max),
        stop=spec.stop,
        has_use=spec.weights is not None or spec.epochs > 0 or scene.architecture.trained,
        identity=spec.plain(),
        notes={} if trained is None else trained.record["notes"],
        **asdict(probed),
    )


@dataclass(frozen=True)
class Case:
    """An attack about to happen: on whom, with what, and on which pictures."""

    scene: Scene
    target: Target
    attack: Attack
    seed: int
    threat: ThreatModel
    public: ImageSet
    victims: ImageSet
    observed: int | None = None  # seed of the release that is observed, where it is not the attack's
    kind: str = "result"  # where the scores are kept: those of controls apart from those of targets
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of the result, for outside attacks

    @classmethod
    def of(cls, scene: Scene, target: Target, attack: Attack, **changed: Any) -> Case:
        """An attack as the scene has it, but for what is `changed`."""
        seed = target.record.seed
        usual = cls(scene, target, attack, seed, scene.threat, scene.public, scene.victims(seed))
        return replace(usual, **changed)

    @property
    def spec(self) -> AttackSpec:
        usual = self.public is self.scene.public
        return AttackSpec(
            self.target.key, self.threat, self.attack, self.seed, None if usual else self.public.digest()
        )  # fmt: skip

    def rng(self, stage: str, device: torch.device) -> torch.Generator:
        return seeds.generator(self.seed, "attack", label(self.attack), stage, device=device)

    def view(self, place: Workplace) -> View:
        return grant(
            self.target.split, self.threat, self.public, self.rng("oracle", place.device),
            classes=len(self.victims.classes), device=place.device,
            priors=kept_priors(place.store, self.public, self.target.key),
        )  # fmt: skip

    def observe(self, device: torch.device) -> Observed:
        rng = seeds.generator(self.observed or self.seed, "victims", "release", device=device)
        return self.scene.goal.observe(self.target.split, self.victims, rng)

    def strays(self, seen: Observed) -> bool:
        """Whether what was observed is not what the victims' pictures release otherwise."""
        if seen.features is None or self.kind != "result":
            return False
        goal, split = self.scene.goal, self.target.split

        def release(rng: torch.Generator) -> Tensor:
            features = goal.observe(split, self.victims, rng).features
            assert features is not None
            return features

        return strays(seen.features, release)


@dataclass(frozen=True)
class Rebuilt:
    """Reconstructions, and what the attack says about itself."""

    key: str
    images: Tensor
    diagnostics: Diagnostics
    read: Tensor | None = None  # the label that the server reads from the very features that were observed
    strays: bool = False  # what was observed is not what the same pictures release otherwise


def prepare(case: Case, view: View, place: Workplace) -> Prepared:
    """Stage prepare: what the attack learns before it sees a victim, from the store or learnt now."""
    key = case.spec.prepared_key
    if not case.attack.keep_prepared:
        return _learnt(case, view, place)
    with place.store.claim("prepared", key) as done:
        if done is not None:
            diagnostics = from_json(Diagnostics, done.record["diagnostics"])
            view.budget.spent += diagnostics.queries
            return Prepared({k: brought(t, place.device) for k, t in done.tensors().items()}, diagnostics)
        progress.say(f"{label(case.attack)}: preparing")
        prepared = _learnt(case, view, place)
        record = {"plan": describe(case.spec), "diagnostics": to_json(prepared.diagnostics)}
        place.store.put("prepared", key, record, prepared.tensors)
    return prepared


def _learnt(case: Case, view: View, place: Workplace) -> Prepared:
    """What the attack learns now, with its price: whoever reads it from the store pays nothing, and it was not free."""
    before, started, worked = view.budget.spent, time.monotonic(), time.process_time()
    prepared = case.attack.prepare(view, case.rng("prepare", place.device))
    price = prepared.diagnostics.spent(
        queries=view.budget.spent - before,
        seconds=time.monotonic() - started,
        cpu_seconds=time.process_time() - worked,
    )
    return replace(prepared, diagnostics=price)


def reconstruct(case: Case, place: Workplace) -> Rebuilt:
    """Stage reconstruct: what the attack makes of what it observed."""
    case.threat.require(case.attack.needs, case.attack.kind_name)
    key = case.spec.key(case.victims.digest())
    with place.store.claim("attack", key) as done:
        if done is None:
            view = case.view(place)
            prepared = prepare(case, view, place)
            started, worked = time.monotonic(), time.process_time()
            progress.say(f"{label(case.attack)}: rebuilding {len(case.victims)} pictures")
            seen = case.observe(place.device)
            guess = case.attack.reconstruct(view, prepared, seen, case.rng("reconstruct", place.device))
            images = returned(case.attack, guess.images, case.victims)
            read = case.scene.goal.read(case.target.split, case.victims, seen)
            found = guess.diagnostics.spent(
                queries=view.budget.spent,
                seconds=prepared.diagnostics.seconds + time.monotonic() - started,
                cpu_seconds=prepared.diagnostics.cpu_seconds + time.process_time() - worked,
            )
            record = {"plan": describe(case.spec), "diagnostics": to_json(found), "strays": case.strays(seen)}
            kept = {"guess": images.clamp(0, 1) if case.victims.pixels else images}
            place.store.put("attack", key, record, kept if read is None else {**kept, "read": read.cpu()})
    rebuilt = read_rebuilt(place.store, key)
    assert rebuilt is not None
    return rebuilt


def read_rebuilt(store: Store, key: str) -> Rebuilt | None:
    """The reconstructions with this key; None: they are not in this store, which scores do not need."""
    entry = store.get("attack", key)
    if entry is None:
        return None
    tensors, found = entry.tensors(), from_json(Diagnostics, entry.record["diagnostics"])
    return Rebuilt(key, tensors["guess"], found, tensors.get("read"), entry.record.get("strays", False))


def score(case: Case, rebuilt: Rebuilt, place: Workplace) -> AttackResult:
    """Stage score: every metric, one value per victim, with its direction."""
    scene = case.scene
    key = score_key(rebuilt.key, scene.metrics, scene.goal.judged_by(scene))
    with place.store.claim(case.kind, key) as done:
        if done is None:
            result, kept = scored(case, rebuilt, place)
            if case.kind == "result":
                keep_victims(place.store, case.victims)
            place.store.put(case.kind, key, {"summary": to_json(result)}, kept)
    entry = place.store.get(case.kind, key)
    assert entry is not None
    return from_json(AttackResult, entry.record["summary"])


def scored(case: Case, rebuilt: Rebuilt, place: Workplace) -> tuple[AttackResult, Mapping[str, Tensor]]:
    """The result of a reconstruction, and every metric by victim; nothing is read from the store, nor kept."""
    scene = case.scene
    key = score_key(rebuilt.key, scene.metrics, scene.goal.judged_by(scene))
    found = scene.goal.score(case, rebuilt.images, place, rebuilt.read)
    kept = found.values if found.scale is None else {**found.values, SCALE: found.scale}
    result = _result(case, key, rebuilt, summaries(kept, scene.metrics))
    result = replace(
        result, mismatched=found.mismatched, label_floor=found.label_floor,
        observed_accuracy=found.observed_accuracy, exposed=found.exposed, strays=rebuilt.strays, **case.extra,
    )  # fmt: skip
    return result, kept


def _result(case: Case, key: str, rebuilt: Rebuilt, metrics: Mapping[str, Summary]) -> AttackResult:
    scene, attack, victims = case.scene, case.attack, case.victims.digest()
    return AttackResult(
        key=key,
        reconstruction=rebuilt.key,
        target=case.target.key,
        attack=Method.of(attack),
        traits=Traits(attack.white_box, attack.linear, attack.averages_noise),
        threat=threat_record(case.threat),
        goal=scene.goal.kind_name,
        seed=case.seed,
        victims=victims,
        metrics=metrics,
        directions={metric.name: metric.more_leak for metric in scene.metrics},
        diagnostics=rebuilt.diagnostics,
        control=control_key(
            attack,
            case.threat,
            scene.splits_digest,
            describe(scene.architecture),
            len(case.victims),
            scene.goal.judged_by(scene),
        ),
        mismatched=0.0,
        victims_from=scene.config.chosen_victims.source,
        command=_command(case),
    )


def _command(case: Case) -> str | None:
    command, stop = case.scene.command, case.target.record.stop
    return command if command is None or stop is None else f"{command} --set stops=[{stop}]"


def run_case(case: Case, place: Workplace) -> AttackResult:
    """Prepare, reconstruct and score."""
    return score(case, reconstruct(case, place), place)


def values_of(store: Store, result: AttackResult) -> dict[str, Tensor]:
    """Every metric of a result, one value per victim (one in all for metrics of a set)."""
    entry = store.get("result", result.key)
    assert entry is not None
    return entry.tensors()


def keep_victims(store: Store, victims: ImageSet) -> None:
    """The first victims at 8 bits, once."""
    if victims.pixels and store.get("victims", key := victims.digest()) is None:
        pictures = (victims.images[:KEPT] * 255).round().to(torch.uint8)
        store.put("victims", key, {"count": len(victims)}, {"truth": pictures})


def summaries(values: Mapping[str, Tensor], metrics: Iterable[Scored]) -> dict[str, Summary]:
    """Mean, interval and worst case of every metric."""
    found = {}
    for metric in metrics:
        if metric.name == "leak":
            scale = values.get(SCALE)
            found["leak"] = summarize_leak(values["leak"].numpy(), None if scale is None else scale.numpy())
        elif metric.name in values:
            found[metric.name] = summarize(values[metric.name].flatten().numpy(), metric.more_leak)
    return found
