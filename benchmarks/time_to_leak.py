"""Leak against CPU seconds: `auto` against every attack of the full suite as it was, on six targets, in one run.

mnist5k convnet undefended at features.2 (early) and at features.7 (late), with Gaussian noise σ = 0.5 and 3 at the
late cut, CIFAR-10 vgg11-sgm (width 0.25, 4,000 private pictures), and the sparse-coding architecture (λ = 0.5) on
mnist5k. Seconds are CPU time of this process, preparing and rebuilding 64 victims together. `auto` is run twice,
with effort quick and full. Figures of a target:

- `leak`, `seconds`: of `auto` with effort full; `quick_leak`, `quick_seconds` with effort quick;
- `ahead`: leak of `auto` minus that of the best other attack that took no more CPU seconds, the worse of both efforts;
- `ahead_of_all`: leak of the full effort minus the best of the whole old suite, however long that took;
- `flags`: how many doubts the house would raise against `auto` with effort full: not-converged, linear-beats-strong,
  linear-beats-all, black-box-beats-white-box (each is named in the table);
- `share`: CPU seconds of the cheaper effort that reaches the best leak of the old suite (ties: 0.005), over the CPU
  seconds of that whole suite; null when neither does.

    python benchmarks/time_to_leak.py [--targets late,sigma3] [--seed 0] [--data-root DIR]
        [--store DIR] [--keep]

`--keep` takes figures of attacks that an earlier run left in the store (after an interruption). `auto` was developed
on targets and victims of seed 1.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from leakscope.auditing.flags import BLIND, TIE, still_improving
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack, Observed
from leakscope.core.data import DATASETS, Splits
from leakscope.core.defense import build_defense
from leakscope.core.metric import Reference
from leakscope.core.model import SplitModel
from leakscope.core.spec import Plain, describe, digest, label
from leakscope.core.threat import ThreatModel, grant
from leakscope.core.words import FlagId
from leakscope.data.splits import SplitPlan
from leakscope.experiments.floors import class_means
from leakscope.experiments.training import Training, train
from leakscope.metrics.pixel import Leak
from leakscope.models.architecture import MODELS
from leakscope.store import Store

CPU = torch.device("cpu")
VICTIMS = 64

#: The full suite as it was before `auto`.
OLD_SUITE: tuple[str | Plain, ...] = (
    "ridge",
    {"kind": "decoder", "capacity": "small", "steps": 400},
    {"kind": "decoder", "capacity": "medium", "steps": 400},
    {"kind": "decoder", "capacity": "large", "steps": 400},
    {"kind": "decoder", "front": "dense", "steps": 400},
    {"kind": "decoder", "front": "residual", "steps": 400},
    {"kind": "decoder", "loss": "random-conv", "steps": 400},
    "decoder-gan",
    "search",
    {"kind": "search", "tv": 1e-2},
    "peel-exact",
    "e2e-lbfgs",
    "analytic-sparse",
)


@dataclass(frozen=True)
class Place:
    """One target: everything that decides its weights."""

    name: str
    data: str
    model: str | Plain
    cut: str
    defense: str = "none"
    splits: SplitPlan = field(default_factory=SplitPlan)
    training: Training = field(default_factory=lambda: Training(epochs=10, learning_rate=0.003))

    def plain(self) -> Plain:
        parts = {"model": self.model, "training": describe(self.training), "splits": vars(self.splits)}
        return {"name": self.name, "data": self.data, "cut": self.cut, "defense": self.defense, **parts}


SPLIT_NET: Plain = {"kind": "sca-net", "channels": [8, 14], "rows": [16], "dense": [32]}
PLACES = (
    Place("early", "mnist5k", "convnet", "features.2"),
    Place("late", "mnist5k", "convnet", "features.7"),
    Place("sigma0.5", "mnist5k", "convnet", "features.7", "gaussian:sigma=0.5"),
    Place("sigma3", "mnist5k", "convnet", "features.7", "gaussian:sigma=3.0"),
    Place("cifar10", "cifar10", {"kind": "vgg11-sgm", "width": 0.25}, "client",
          splits=SplitPlan(4000, 1500, 4500),
          training=Training(epochs=4, batch=128, optimizer="sgd", learning_rate=0.02, weight_decay=5e-4)),
    Place("sca", "mnist5k", SPLIT_NET, "relu1", "sca:sparsity=0.5",
          training=Training(epochs=4, batch=32, optimizer="sgd", learning_rate=0.004, weight_decay=1e-3,
                            schedule="constant", warmup=0.0)),
)  # fmt: skip


def realise(place: Place, seed: int, root: Path, store: Store) -> tuple[SplitModel, Splits]:
    """The trained target, from the store when it is there."""
    splits = place.splits.draw(DATASETS.build(place.data).load(root), seed=seed)
    architecture = MODELS.build(place.model)
    with seeds.ambient(seed, "target", "init"):
        model = architecture.build(splits.private.shape, len(splits.private.classes))
        split = SplitModel(
            model, place.cut, normalize=architecture.normalization(), defense=build_defense(place.defense)
        )
        split = split.defense.rebuild(split.eval(), splits.public.images[:2])
    plan = {**place.plain(), "seed": seed}
    key = digest(plan)
    with store.claim("trained", key) as done:
        if done is None:
            split, _, _ = train(split, splits.private, place.training, seed=seed, device=CPU)
            store.put("trained", key, {"plan": plan}, split.state_dict())
        else:
            split.load_state_dict(done.tensors())
    return split.eval().requires_grad_(False), splits


@dataclass(frozen=True)
class Outcome:
    """One attack on one target."""

    attack: str
    leak: float
    seconds: float  # CPU, preparing and rebuilding
    linear: bool
    white_box: bool
    improving: bool  # it had not converged, by its own word or by its curve


def attacked(attack: Attack, split: SplitModel, splits: Splits) -> Outcome:
    victims = splits.heldout.take(torch.arange(VICTIMS))
    rng = seeds.generator(0, "time-to-leak", "oracle")
    view = grant(split, ThreatModel(), splits.public, rng, classes=len(victims.classes), device=CPU)
    with torch.no_grad():
        seen = split.release(victims.images, seeds.generator(0, "victims", "release"))
    begun = time.process_time()
    prepared = attack.prepare(view, seeds.generator(0, "time-to-leak", label(attack), "prepare"))
    rebuild = seeds.generator(0, "time-to-leak", label(attack), "reconstruct")
    result = attack.reconstruct(view, prepared, Observed(features=seen), rebuild)
    seconds = time.process_time() - begun
    reference = Reference(class_means(splits.public, victims.labels), None)
    leak = float(Leak()(result.images, victims.images, reference).mean())
    improving = still_improving(result.diagnostics)
    return Outcome(label(attack), leak, seconds, attack.linear, attack.white_box, improving)


def suited(attack: Attack, split: SplitModel, splits: Splits) -> bool:
    return attack.unsuited(split, splits.private.shape) is None


def doubts(ours: Outcome, others: list[Outcome]) -> list[str]:
    """Flags of `auto` beside the old suite, by the rules of `leakscope.auditing.flags`."""
    linear = max((other.leak for other in others if other.linear), default=0.0)
    black = max((other.leak for other in others if not other.white_box), default=0.0)
    trained = max([ours.leak, *(other.leak for other in others if not other.linear)])
    raised = {
        FlagId.NOT_CONVERGED: ours.improving and ours.leak <= 1 - TIE,
        FlagId.LINEAR_BEATS_STRONG: linear > ours.leak + TIE,
        FlagId.LINEAR_BEATS_ALL: linear > trained + BLIND,
        FlagId.BLACK_BOX_WINS: black > ours.leak + TIE,
    }
    return [str(flag.value) for flag, is_raised in raised.items() if is_raised]


def measured(place: Place, seed: int, split: SplitModel, splits: Splits, store: Store, keep: bool) -> list[Outcome]:
    """The two efforts of `auto`, then every attack of the old suite that suits the target."""
    asked: list[str | Plain] = [{"kind": "auto", "effort": "quick"}, {"kind": "auto", "effort": "full"}, *OLD_SUITE]
    outcomes = []
    for attack in [ATTACKS.build(spec) for spec in asked]:
        if not suited(attack, split, splits):
            continue
        key = digest({"place": place.plain(), "attack": describe(attack), "seed": seed, "victims": VICTIMS})
        known = store.get("timed", key) if keep else None
        outcome = Outcome(**known.record) if known is not None else attacked(attack, split, splits)
        if known is None:
            store.put("timed", key, vars(outcome))
        print(f"    {outcome.attack:42s} leak {outcome.leak:7.4f} {outcome.seconds:8.1f} s", flush=True)
        outcomes.append(outcome)
    return outcomes


def compared(outcomes: list[Outcome]) -> dict[str, float | None]:
    quick, full, *old = outcomes
    best = max(outcome.leak for outcome in old)
    whole = sum(outcome.seconds for outcome in old)
    ahead = []
    for ours in (quick, full):
        rivals = [outcome.leak for outcome in old if outcome.seconds <= ours.seconds]
        ahead.append(ours.leak - max(rivals, default=0.0))
    reached = [ours.seconds for ours in (quick, full) if ours.leak >= best - 0.005]
    for ours in (quick, full):
        print(f"    {ours.attack}: flags {', '.join(doubts(ours, old)) or 'none'}", flush=True)
    figures: dict[str, float | None] = {
        "leak": full.leak, "seconds": full.seconds, "quick_leak": quick.leak, "quick_seconds": quick.seconds,
        "old_best": best, "old_seconds": whole, "ahead": min(ahead), "ahead_of_all": full.leak - best,
        "flags": float(len(doubts(full, old))),
        "share": min(reached) / whole if reached else None,
    }  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(place.name for place in PLACES))
    parser.add_argument("--seed", type=int, default=0, help="of targets and victims")
    parser.add_argument("--data-root", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--store", type=Path, default=Path("runs/time_to_leak"), help="keeps the trained targets")
    parser.add_argument("--keep", action="store_true", help="take figures that an earlier run left in the store")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # its imports take seconds, which no attack should pay
    store = Store(arguments.store)
    ratios: dict[str, float | None] = {}
    for place in [place for place in PLACES if place.name in arguments.targets.split(",")]:
        split, splits = realise(place, arguments.seed, arguments.data_root, store)
        print(place.name, flush=True)
        figures = compared(measured(place, arguments.seed, split, splits, store, arguments.keep))
        rounded = {key: value if value is None else round(value, 4) for key, value in figures.items()}
        print("   ", ", ".join(f"{key} {value}" for key, value in rounded.items()), flush=True)
        ratios |= {f"{place.name}_{key}": value for key, value in rounded.items()}
    print(json.dumps({"benchmark": "time_to_leak", "ratios": ratios, "seconds": round(time.process_time() - begun, 1)}))


if __name__ == "__main__":
    main()
