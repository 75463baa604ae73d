"""One experiment, stage by stage; every finished stage is kept, and none is computed twice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leakscope.auditing.floors import class_means
from leakscope.core import progress, seeds
from leakscope.core.attack import Attack, Observed, Prepared
from leakscope.core.data import ImageSet
from leakscope.core.experiment import AttackPlan, TargetPlan, result_key
from leakscope.core.metric import Metric, Reference
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.spec import Plain, describe, digest, label
from leakscope.core.threat import ThreatModel, View, grant
from leakscope.metrics.recognition import MEASURES, Judged, Measure, recognition
from leakscope.metrics.separability import separability
from leakscope.metrics.summary import summarize
from leakscope.metrics.utility import accuracy, calibration
from leakscope.pipeline.about import described, keep_victims
from leakscope.pipeline.evaluator import EvaluationNetwork
from leakscope.pipeline.plan import Plan
from leakscope.pipeline.pretraining import pretrained, transplant
from leakscope.pipeline.priors import kept_priors
from leakscope.pipeline.train import predict, train
from leakscope.store import Store


@dataclass(frozen=True)
class Target:
    """A network ready to be attacked, and what is known about it."""

    key: str
    split: SplitModel
    record: dict[str, Any]


@dataclass(frozen=True)
class Workplace:
    """Where work happens: the store that keeps it and the device that does it."""

    store: Store
    device: torch.device


def target_plan(plan: Plan, cut: str, defense: Any, seed: int) -> TargetPlan:
    return TargetPlan(
        splits=plan.splits.digest(),
        model=describe(plan.architecture),
        weights=plan.weights_digest,
        cut=cut,
        defense=defense,
        training=describe(plan.config.training),
        seed=seed,
        pretraining=_first_training(plan),
    )


def _first_training(plan: Plan) -> Plain | None:
    """What identifies the weights a target begins with."""
    first = plan.config.pretraining
    return None if first is None else {**describe(first), "pictures": plan.splits.public.digest()}


def realise(plan: Plan, chosen: TargetPlan, place: Workplace) -> Target:
    """The trained target: from the store, or trained now with its defence."""
    split = plan.build(chosen.cut, chosen.defense, chosen.seed).to(place.device)
    epochs = chosen.training["epochs"]
    name = f"{plan.model_name} ({label(chosen.defense)})"
    if epochs:
        with place.store.claim("trained", chosen.trained_key) as done:
            if done is None:
                if plan.config.pretraining is not None:
                    _begin_with_public_classes(plan, chosen, split, place)
                progress.say(f"training {name} at {chosen.cut}, seed {chosen.seed}")
                checkpoint = place.store.scratch("trained", chosen.trained_key) / "checkpoint.pt"
                split, history, notes = train(
                    split, plan.splits.private, plan.config.training,
                    seed=chosen.seed, device=place.device, checkpoint=checkpoint,
                )  # fmt: skip
                record = {"plan": chosen.plain(), "history": vars(history), "notes": notes}
                place.store.put("trained", chosen.trained_key, record, split.state_dict())
            else:
                split.load_state_dict(done.tensors())
    split.eval().requires_grad_(False)
    with place.store.claim("target", chosen.key) as known:
        if known is None:
            place.store.put("target", chosen.key, _measured(plan, chosen, split, place.device))
    entry = place.store.get("target", chosen.key)
    assert entry is not None
    return Target(chosen.key, split, entry.record)


def _begin_with_public_classes(plan: Plan, chosen: TargetPlan, split: SplitModel, place: Workplace) -> None:
    first = plan.config.pretraining
    assert first is not None
    pictures = first.pictures(plan.splits.public, plan.data_root)
    transplant(pretrained(plan.architecture, first, pictures, plan.cuts[0], chosen.seed, place), split)


@torch.no_grad()
def _measured(plan: Plan, chosen: TargetPlan, split: SplitModel, device: torch.device) -> dict[str, Any]:
    """Use and shape of a target; its key is enough to find it again."""
    heldout = plan.splits.heldout
    rng = seeds.generator(chosen.seed, "target", "accuracy", device=device)
    scores = predict(split, heldout.images, rng, device)
    sample = heldout.images[:256].to(device)
    released = split.release(sample, rng)
    again = split.release(sample[:8], seeds.generator(1, "again", device=device))
    once = split.release(sample[:8], seeds.generator(2, "again", device=device))
    spread = separability(released.cpu().flatten(1))
    return {
        "plan": chosen.plain(),
        "model": plan.model_name,
        "defense": label(chosen.defense),
        "cut": chosen.cut,
        "seed": chosen.seed,
        "accuracy": accuracy(scores, heldout.labels),
        "calibration": calibration(scores, heldout.labels),
        "input": {"shape": list(heldout.shape), "classes": list(heldout.classes)},
        "feature_shape": list(released.shape[1:]),
        "client_compute": plan.client_compute[chosen.cut],
        "random_release": not torch.equal(again, once),
        "separability": {"min": spread.min, "mean": spread.mean, "max": spread.max},
    }


@dataclass(frozen=True)
class Case:
    """An attack about to happen: on whom, with what, and on which pictures."""

    target: Target
    attack: Attack
    threat: ThreatModel
    public: ImageSet
    victims: ImageSet
    seed: int
    judge: EvaluationNetwork | None = None  # for class attacks; no view ever holds it
    about: dict[str, Any] = field(default_factory=dict)  # what tables call it: data, command

    @property
    def plan(self) -> AttackPlan:
        return AttackPlan(self.target.key, self.threat, self.attack, self.seed)

    def rng(self, stage: str, device: torch.device) -> torch.Generator:
        return seeds.generator(self.seed, "attack", label(self.attack), stage, device=device)

    def view(self, place: Workplace) -> View:
        return grant(
            self.target.split, self.threat, self.public, self.rng("oracle", place.device),
            classes=len(self.victims.classes), device=place.device,
            priors=kept_priors(place.store, self.public, self.target.key),
        )  # fmt: skip


def run_attack(case: Case, place: Workplace) -> tuple[str, Tensor, dict[str, Any]]:
    """Key, reconstructions and notes of one attack; prepared and finished stages come from the store."""
    case.threat.require(case.attack.needs, case.attack.kind_name)
    key = case.plan.key(case.victims.digest())
    with place.store.claim("attack", key) as done:
        if done is not None:
            return key, done.tensors()["guess"], done.record["notes"]
        started, worked = time.monotonic(), time.process_time()
        view = case.view(place)
        prepared = run_prepare(case, view, place)
        progress.say(f"{label(case.attack)}: rebuilding {len(case.victims)} pictures")
        seen = observe(case, place.device)
        guess = case.attack.reconstruct(view, prepared, seen, case.rng("reconstruct", place.device))
        images = guess.images.detach().float().cpu()
        if not torch.isfinite(images).all():
            raise FloatingPointError(f"{label(case.attack)} returned pictures that are not finite")
        found = guess.diagnostics.spent(
            queries=view.budget.spent, seconds=time.monotonic() - started, cpu_seconds=time.process_time() - worked
        )
        notes = found.as_json()
        record = {"plan": describe(case.plan), "notes": notes}
        place.store.put("attack", key, record, {"guess": images.clamp(0, 1) if case.victims.pixels else images})
    entry = place.store.get("attack", key)
    assert entry is not None
    return key, entry.tensors()["guess"], entry.record["notes"]


def run_prepare(case: Case, view: View, place: Workplace) -> Prepared:
    """What the attack learns before it sees a victim: from the store, or learnt now."""
    key = case.plan.prepared_key
    with place.store.claim("prepared", key) as done:
        if done is not None:
            return Prepared(
                {k: t.to(place.device) for k, t in done.tensors().items()}, Diagnostics.from_json(done.record["notes"])
            )
        progress.say(f"{label(case.attack)}: preparing")
        prepared = case.attack.prepare(view, case.rng("prepare", place.device))
        place.store.put(
            "prepared", key, {"plan": describe(case.plan), "notes": prepared.diagnostics.as_json()}, prepared.tensors
        )
    return prepared


@torch.no_grad()
def observe(case: Case, device: torch.device, batch: int = 256) -> Observed:
    """What the target releases for the victims; the attack never sees the victims themselves."""
    if case.attack.rebuilds_classes:
        return Observed(classes=case.victims.labels.to(device))
    rng = seeds.generator(case.seed, "victims", "release", device=device)
    parts = [case.target.split.release(part.to(device), rng) for part in case.victims.images.split(batch)]
    return Observed(features=torch.cat(parts))


def score(
    guess: Tensor, truth: ImageSet, public: ImageSet, metrics: Iterable[Metric | Measure], root: Any
) -> dict[str, Tensor]:
    """Every metric; the only place where truth and guess meet."""
    reference = Reference(class_means(public, truth.labels), root)
    return {
        metric.name: metric(guess, truth.images, reference).detach().cpu()
        for metric in metrics
        if isinstance(metric, Metric)
    }


def class_result_key(attack_key: str, judge_key: str) -> str:
    """Identity of what an evaluation network says."""
    return digest({"attack": attack_key, "evaluator": judge_key, "measures": [*MEASURES]})


def judged(case: Case, judge: EvaluationNetwork, guess: Tensor, device: torch.device) -> Judged:
    """What the evaluation network and the target itself say about rebuilt classes."""
    rng = seeds.generator(case.seed, "target", "believes", device=device)
    believed = predict(case.target.split, guess, rng, device).argmax(1)
    return judge.judge(guess, case.victims.labels, believed)


def run_scores(
    attack_key: str, guess: Tensor, case: Case, metrics: Sequence[Metric | Measure], root: Any, place: Workplace
) -> tuple[str, dict[str, Tensor]]:
    """Scores of one attack's reconstructions, kept under a key of their own."""
    key = result_key(attack_key, list(metrics)) if case.judge is None else class_result_key(attack_key, case.judge.key)
    with place.store.claim("result", key) as done:
        if done is not None:
            return key, done.tensors()
        if case.judge is None:
            values = score(guess, case.victims, case.public, metrics, root)
        else:
            values = recognition(judged(case, case.judge, guess, place.device))
        facts = described(case.target.record, case.threat, case.victims)
        summary = {
            "target": case.target.key,
            "attack": label(case.attack),
            "seed": case.seed,
            "metrics": summaries(values, metrics),
            **({**facts, **case.about} if facts else {}),
        }
        if facts:
            keep_victims(place.store, case.victims)
        record = {"attack": attack_key, "summary": summary}
        place.store.put("result", key, record, values)
    return key, values


def summaries(values: dict[str, Tensor], metrics: Iterable[Metric | Measure]) -> dict[str, dict[str, float]]:
    """Mean, interval and worst case of every metric."""
    return {
        metric.name: summarize(values[metric.name], metric.more_leak, seed=0).as_dict()
        for metric in metrics
        if metric.name in values
    }
