"""Rebuild what the private classes look like, from a trained network alone.

A class attack shapes a picture until the target accepts it, so the target's opinion proves nothing.
The evaluation network's does, if it stays at chance wherever there is nothing to rebuild.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from leakscope.auditing.flags import ACCEPTED, MISMATCHED, TIE
from leakscope.core import progress, seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.data import ImageSet, Splits
from leakscope.core.defense import build_defense
from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Scored
from leakscope.core.model import SplitModel
from leakscope.core.results import AttackResult, ControlResult, Summary
from leakscope.core.spec import describe, digest, label
from leakscope.core.words import Control, FlagId
from leakscope.experiments import stand_ins
from leakscope.experiments.building import build_split
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.evaluator import Judge, ceilings, evaluator_key, judge_for
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.floors import mean_image, nearest_public_image
from leakscope.experiments.goal import GOALS, Goal, Scores
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Case, Target, run_case, summaries, train_target
from leakscope.experiments.training import Training, predict, train
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.recognition import Judged, recognition
from leakscope.models.resolve import resolve
from leakscope.stats.summaries import summarize
from leakscope.store import Store

#: Pictures of a prior for each identity, for its floor.
_SAMPLES = 5


@GOALS.register("identities")
@dataclass(frozen=True)
class Identities(Goal):
    """Classes are named, and the attacker rebuilds what their private pictures look like."""

    what: ClassVar[str] = "rebuild what the private classes look like"
    long_jobs: ClassVar[bool] = True
    found: ClassVar[str] = (
        "Of the identities rebuilt from {target}, a network that no attack has read recognised {share} as well as "
        "real pictures{twin}"
    )
    control_words: ClassVar[Mapping[Control, str]] = {
        Control.POSITIVE: "a target that scores the distance to each class's mean picture must accept what was rebuilt",
        Control.NEGATIVE: "nobody is recognised where nothing is known: a random target, one trained on permuted"
        " labels, and reconstructions under other people's names (low ends of the interval of leak)",
        Control.BUDGET: "a larger budget of the strongest attack must not rebuild more",
    }

    def victims(
        self, splits: Splits, count: int, seed: int, source: Literal["heldout", "private", "both"] = "heldout"
    ) -> ImageSet:
        """Classes to rebuild, each shown by the first of its private pictures."""
        del source  # `require` refuses any other
        private = splits.private
        present = private.labels.unique()
        order = torch.randperm(len(present), generator=seeds.generator(seed, "identities"))
        chosen = present[order[:count]].sort().values
        first = (private.labels[None] == chosen[:, None]).int().argmax(1)
        return private.take(first)

    def require(self, attacks: Sequence[Attack], config: AuditConfig, splits: Splits) -> None:
        present = len(splits.private.labels.unique())
        if present < 2:
            raise UsageError("class attacks need a target with two classes or more")
        if config.chosen_victims.source != "heldout" or config.threat.public != "own":
            raise UsageError(
                "a class attack rebuilds what the private pictures of a class look like: it has no victims.from, "
                "and an attacker who has the private pictures (threat.public) has nothing left to rebuild"
            )
        if not config.threat.shared_classes:
            if not config.splits.by_identity and config.split_index is None:
                raise UsageError(
                    "class attacks need public classes that are not private: set splits.by_identity=true, or say "
                    "that the attacker has pictures of these classes: threat.shared_classes=true"
                )
            splits.require_disjoint_identities()
        if "network" in config.evaluator.judges:
            _ = config.evaluator.network  # refuses a name that is none
        embedding = config.evaluator.embedding
        if embedding is not None and (problem := embedding.unavailable(config.data_root)) is not None:
            raise UsageError(f"evaluator.embedder: {problem}")
        for attack in attacks:
            prior = getattr(attack, "prior", None)
            if prior is not None:
                prior.require(splits.public.shape)
            least, allowed = attack.least_queries(min(config.chosen_victims.count, present)), config.threat.queries
            if allowed is not None and allowed < least:
                raise UsageError(
                    f"{attack.kind_name} starts with {least} queries and threat.queries is {allowed}; raise it, or "
                    "attack fewer classes"
                )

    def metrics(self, asked: Sequence[Scored]) -> list[Scored]:
        """All of its own: a class audit measures everything that the evaluation network can say."""
        return [METRICS.build(name) for name in METRICS if METRICS[name].goal == self.kind_name]

    def observe(self, split: SplitModel, victims: ImageSet, rng: torch.Generator) -> Observed:
        return Observed(classes=victims.labels.to(rng.device))

    def judged_by(self, scene: Scene) -> str | None:
        return evaluator_key(scene.config.evaluator, scene.splits)

    def prepare_judge(self, scene: Scene, place: Workplace) -> None:
        judge_of(scene, place)

    def ceiling(self, scene: Scene, store: Store) -> float | None:
        return next(iter(self.ceilings(scene, store).values()), None)

    def ceilings(self, scene: Scene, store: Store) -> dict[str, float]:
        return ceilings(scene.config.evaluator, scene.splits, store)

    def judge_work(self, scene: Scene) -> float:
        evaluator = scene.config.evaluator
        epochs = evaluator.training.epochs if "network" in evaluator.judges else 1
        return float(max(epochs, 1) * len(scene.splits.private))

    def score(self, case: Case, guess: Tensor, place: Workplace, read: Tensor | None = None) -> Scores:
        rng = seeds.generator(case.seed, "target", "believes", device=place.device)
        believed = predict(case.target.split, guess, rng, place.device).argmax(1)
        judged = judge_of(case.scene, place).judge(guess, case.victims.labels, believed)
        leak = [metric for metric in case.scene.metrics if metric.name == "leak"]
        swapped = recognition(replace(judged, classes=judged.classes.roll(1)), leak)["leak"]
        return Scores(recognition(judged, case.scene.metrics), summarize(swapped.numpy(), "high").low)

    def floors(self, scene: Scene, attacks: Sequence[Attack], place: Workplace) -> dict[str, dict[str, Summary]]:
        """What somebody scores who never asked the target: public pictures, their mean, samples of each prior."""
        judge, public, victims = judge_of(scene, place), scene.splits.public, scene.first_victims
        draw = torch.randint(len(public), (len(victims),), generator=seeds.generator(0, "floor"))
        guesses = {
            "mean": mean_image(public, victims).contiguous(),
            "random-public": public.images[draw],
            "nearest-public": nearest_public_image(public, victims),
            **_samples(scene, attacks, place),
        }
        return {
            name: summaries(recognition(_nobody(judge, guess, victims), scene.metrics), scene.metrics)
            for name, guess in guesses.items()
        }

    def control(self, scene: Scene, target: TargetSpec, attack: Attack, place: Workplace) -> list[ControlResult]:
        """A target that hides nothing, and targets that know nothing (low ends of leak)."""
        open_ = _stand_in(scene, "class templates", "squared distances", templates(scene.splits.private), target, place)
        accepted = run_case(Case.of(scene, open_, attack, kind="checked"), place).metrics["target-accuracy"].mean
        found = [
            ControlResult(
                Control.POSITIVE, label(attack), accepted, ACCEPTED, accepted >= ACCEPTED, FlagId.CLASS_CONTROL_FAILED
            )
        ]
        for ignorant in _ignorant(scene, target, place):
            low = run_case(Case.of(scene, ignorant, attack, kind="checked"), place).metrics["leak"].low
            found.append(
                ControlResult(
                    Control.NEGATIVE,
                    label(attack),
                    low,
                    MISMATCHED,
                    low <= MISMATCHED,
                    FlagId.NEGATIVE_CONTROL,
                    where=ignorant.record.model.label,
                )
            )
        return found

    def checks(
        self, scene: Scene, target: TargetSpec, attack: Attack, result: AttackResult, place: Workplace
    ) -> list[ControlResult]:
        """A larger budget of the strongest attack; planted features are a control of attacks on pictures."""
        longer = attack.longer()
        if longer is None:
            return []
        made = train_target(scene, target, place)
        gained = run_case(Case.of(scene, made, longer, kind="checked"), place).leak - result.leak
        return [
            ControlResult(
                Control.BUDGET, label(attack), gained, TIE, gained <= TIE, FlagId.MORE_BUDGET_HELPS, result.key,
                f"a larger budget, {made.record.name}",
            )
        ]  # fmt: skip

    def negative_controls(self, results: Sequence[AttackResult]) -> tuple[ControlResult, ...]:
        return tuple(
            ControlResult(
                Control.NEGATIVE,
                result.attack.label,
                result.mismatched,
                MISMATCHED,
                result.mismatched <= MISMATCHED,
                FlagId.NEGATIVE_CONTROL,
                result.key,
                "shuffled identities",
            )
            for result in results
        )


def judge_of(scene: Scene, place: Workplace) -> Judge:
    """Who recognises rebuilt classes: from the store, or trained now; no view ever holds it."""
    key = (str(place.store.root), evaluator_key(scene.config.evaluator, scene.splits))
    if key not in _JUDGES:
        _JUDGES.clear()  # one at a time: a process works on one configuration after another
        _JUDGES[key] = judge_for(scene.config.evaluator, scene.splits, scene.config.data_root, place)
    return _JUDGES[key]


_JUDGES: dict[tuple[str, str], Judge] = {}


class Templates(nn.Module):
    """Scores −‖x − m_k‖² with the mean private picture m_k of each class: a target that hides nothing."""

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.means: Tensor
        self.register_buffer("means", means.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        # ‖x‖² is common to all classes and a softmax does not see it, but attacks on logits do.
        flat: Tensor = self.flat(x)
        return 2 * flat @ self.means.T - self.means.square().sum(1) - flat.square().sum(1, keepdim=True)


def templates(private: ImageSet) -> SplitModel:
    """The positive control of class attacks."""
    count = len(private.classes)
    sums = torch.zeros(count, private.images[0].numel()).index_add_(0, private.labels, private.images.flatten(1))
    sizes = torch.bincount(private.labels, minlength=count).clamp(min=1)
    return SplitModel(Templates(sums / sizes[:, None]), "flat").eval()


def _ignorant(scene: Scene, target: TargetSpec, place: Workplace) -> list[Target]:
    """Targets with nothing to give away: fresh weights, and weights fitted to permuted labels."""
    twin = replace(target, defense=build_defense("none"), stop=None)
    untaught, training = _untaught(scene, twin)
    fresh = untaught.to(place.device).eval()
    private, seed = scene.splits.private, twin.seed
    permuted = ImageSet(
        private.images,
        private.labels[torch.randperm(len(private), generator=seeds.generator(seed, "permuted labels"))],
        private.classes,
    )
    own = {} if training is scene.config.training else {"training": describe(training), "network": _STAND_IN}
    key = digest({"permuted": twin.plain(), **own})
    split = copy.deepcopy(fresh).train()
    with place.store.claim("permuted", key) as done:
        if done is None:
            progress.say("training the target of permuted labels (negative control)")
            checkpoint = place.store.scratch("permuted", key) / "checkpoint.pt"
            split, history, _ = train(split, permuted, training, seed=seed, device=place.device, checkpoint=checkpoint)
            place.store.put("permuted", key, {"history": vars(history)}, split.state_dict())
        else:
            split.load_state_dict(done.tensors())
    weights = digest({"model": twin.model, "weights": twin.weights, **own})
    return [
        _stand_in(scene, "random weights", weights, fresh, twin, place),
        _stand_in(scene, "permuted labels", key, split.eval().requires_grad_(False), twin, place),
    ]


#: What takes the place of a network that is there as it is: one that came trained cannot be made to know nothing.
_STAND_IN = "convnet"


def _untaught(scene: Scene, twin: TargetSpec) -> tuple[SplitModel, Training]:
    """A network that has learned nothing, and how the audit trains it."""
    config = scene.config
    if config.training.epochs or not (config.weights or scene.architecture.trained):
        return scene.build(twin), config.training
    network = resolve(_STAND_IN)
    split = build_split(
        network, network.default_cuts[0], twin.defense, example=scene.splits.public.images[:2],
        classes=len(scene.splits.private.classes), seed=twin.seed,
    )  # fmt: skip
    return split, Training()


def _stand_in(scene: Scene, name: str, weights: str, split: SplitModel, spec: TargetSpec, place: Workplace) -> Target:
    """A control network used as a target; `weights` names what determines its weights beside the pictures."""
    key = digest({"control": name, "weights": weights, "splits": scene.splits_digest, "seed": spec.seed})
    return stand_ins.stand_in(scene, split, key, name, spec, place)


def _samples(scene: Scene, attacks: Sequence[Attack], place: Workplace) -> dict[str, Tensor]:
    """Random pictures of every prior that does not read a target's scores."""
    priors = dict.fromkeys(prior for attack in attacks if (prior := getattr(attack, "prior", None)))
    open_ = templates(scene.splits.private)
    spec = scene.spec("flat", build_defense("none"), scene.config.first_seed)
    stand_in = _stand_in(scene, "class templates", "squared distances", open_, spec, place)
    found = {}
    for prior in priors:
        if not prior.reads_scores:
            view = Case.of(scene, stand_in, attacks[0]).view(place)
            rng = seeds.generator(0, "floor", label(prior), device=place.device)
            generator = view.prior(prior)
            drawn = generator.sample(_SAMPLES * len(scene.first_victims), rng)
            found[f"sample of {label(prior)}"] = generator.decode(drawn).detach().cpu()
    return found


def _nobody(judge: Judge, guess: Tensor, victims: ImageSet) -> Judged:
    """Scores without a target, so that no prediction of a target is used."""
    return judge.judge(guess, victims.labels, torch.full((len(guess),), -1))
