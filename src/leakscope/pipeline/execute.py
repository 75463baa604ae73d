"""One experiment, stage by stage; every finished stage is kept, and none is computed twice."""

from __future__ import annotations

import time
from dataclasses import dataclass
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
from leakscope.core.spec import describe, label
from leakscope.core.threat import ThreatModel, View, grant
from leakscope.metrics.separability import separability
from leakscope.metrics.summary import summarize
from leakscope.metrics.utility import accuracy, calibration
from leakscope.pipeline.plan import Plan
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
    )


def realise(plan: Plan, chosen: TargetPlan, place: Workplace) -> Target:
    """The trained target: from the store, or trained now with its defence."""
    split = plan.build(chosen.cut, chosen.defense, chosen.seed).to(place.device)
    epochs = chosen.training["epochs"]
    name = f"{plan.model_name} ({label(chosen.defense)})"
    if epochs:
        with place.store.claim("trained", chosen.trained_key) as done:
            if done is None:
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

    @property
    def plan(self) -> AttackPlan:
        return AttackPlan(self.target.key, self.threat, self.attack, self.seed)

    def rng(self, stage: str, device: torch.device) -> torch.Generator:
        return seeds.generator(self.seed, "attack", label(self.attack), stage, device=device)

    def view(self, device: torch.device) -> View:
        return grant(
            self.target.split, self.threat, self.public, self.rng("oracle", device),
            classes=len(self.public.classes), device=device,
        )  # fmt: skip


def run_attack(case: Case, place: Workplace) -> tuple[str, Tensor, dict[str, Any]]:
    """Key, reconstructions and notes of one attack; prepared and finished stages come from the store."""
    case.threat.require(case.attack.needs, case.attack.kind_name)
    key = case.plan.key(case.victims.digest())
    with place.store.claim("attack", key) as done:
        if done is not None:
            return key, done.tensors()["guess"], done.record["notes"]
        started = time.monotonic()
        view = case.view(place.device)
        prepared = _prepared(case, view, place)
        progress.say(f"{label(case.attack)}: rebuilding {len(case.victims)} pictures")
        seen = observe(case, place.device)
        guess = case.attack.reconstruct(view, prepared, seen, case.rng("reconstruct", place.device))
        images = guess.images.detach().float().cpu()
        if not torch.isfinite(images).all():
            raise FloatingPointError(f"{label(case.attack)} returned pictures that are not finite")
        notes = {
            **prepared.notes, **guess.notes,
            "queries": view.budget.spent, "seconds": round(time.monotonic() - started, 3),
        }  # fmt: skip
        record = {"plan": describe(case.plan), "notes": notes}
        place.store.put("attack", key, record, {"guess": images.clamp(0, 1) if case.victims.pixels else images})
    entry = place.store.get("attack", key)
    assert entry is not None
    return key, entry.tensors()["guess"], entry.record["notes"]


def _prepared(case: Case, view: View, place: Workplace) -> Prepared:
    key = case.plan.prepared_key
    with place.store.claim("prepared", key) as done:
        if done is not None:
            return Prepared({k: t.to(place.device) for k, t in done.tensors().items()}, done.record["notes"])
        progress.say(f"{label(case.attack)}: preparing")
        prepared = case.attack.prepare(view, case.rng("prepare", place.device))
        place.store.put("prepared", key, {"plan": describe(case.plan), "notes": prepared.notes}, prepared.tensors)
    return prepared


@torch.no_grad()
def observe(case: Case, device: torch.device, batch: int = 256) -> Observed:
    """What the target releases for the victims; the attack never sees the victims themselves."""
    rng = seeds.generator(case.seed, "victims", "release", device=device)
    parts = [case.target.split.release(part.to(device), rng) for part in case.victims.images.split(batch)]
    return Observed(features=torch.cat(parts))


def score(guess: Tensor, truth: ImageSet, public: ImageSet, metrics: list[Metric], root: Any) -> dict[str, Tensor]:
    """Every metric; the only place where truth and guess meet."""
    reference = Reference(class_means(public, truth.labels), root)
    return {metric.name: metric(guess, truth.images, reference).detach().cpu() for metric in metrics}


def run_scores(
    attack_key: str, guess: Tensor, case: Case, metrics: list[Metric], root: Any, place: Workplace
) -> tuple[str, dict[str, Tensor]]:
    """Scores of one attack's reconstructions, kept under a key of their own."""
    key = result_key(attack_key, list(metrics))
    with place.store.claim("result", key) as done:
        if done is not None:
            return key, done.tensors()
        values = score(guess, case.victims, case.public, metrics, root)
        summary = {
            "target": case.target.key,
            "attack": label(case.attack),
            "seed": case.seed,
            "metrics": summaries(values, metrics),
        }
        record = {"attack": attack_key, "summary": summary}
        place.store.put("result", key, record, values)
    return key, values


def summaries(values: dict[str, Tensor], metrics: list[Metric]) -> dict[str, dict[str, float]]:
    """Mean, interval and worst case of every metric."""
    return {
        metric.name: summarize(values[metric.name], metric.more_leak, seed=0).as_dict()
        for metric in metrics
        if metric.name in values
    }
