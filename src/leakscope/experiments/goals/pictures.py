"""Rebuild the picture a user sent, from what the client released for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.auditing.flags import BLIND, MISMATCHED, UNEVEN
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.chunks import fitting, in_chunks
from leakscope.core.data import ImageSet, Splits, joined
from leakscope.core.metering import forward_only
from leakscope.core.metric import Metric, Reference, Scored
from leakscope.core.model import SplitModel
from leakscope.core.results import AttackResult, ControlResult, Flag, Summary
from leakscope.core.spec import digest, label
from leakscope.core.words import Control, FlagId
from leakscope.experiments import stand_ins
from leakscope.experiments.budget import budget_checks
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.floors import FLOORS, class_means, near_duplicates
from leakscope.experiments.goal import GOALS, Goal, Scores
from leakscope.experiments.probes import alike, one_by_one, rounding
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Case, Target, reconstruct, run_case, summaries, train_target
from leakscope.experiments.workplace import Workplace
from leakscope.metrics.pictures import squared_error

#: A victim whose own leak passes this is exposed, whatever the mean.
EXPOSED = 0.9
#: Pictures sent through the client at once, if they fit: more are no quicker.
BATCH = 256


def released_at_once(split: SplitModel, example: Tensor) -> int:
    """How many pictures are sent through a client at once; `example` is a batch of one, on its device."""
    return fitting(forward_only(split.encode), example, most=BATCH)


@GOALS.register("pictures")
@dataclass(frozen=True)
class Pictures(Goal):
    """Held-out pictures are sent, and the attacker rebuilds them from their released features."""

    what: ClassVar[str] = "rebuild the picture a user sent"
    found: ClassVar[str] = (
        "An attacker rebuilt {share} of what distinguishes a picture from the average of its class, "
        "from what {target} gives away{twin}"
    )
    control_words: ClassVar[Mapping[Control, str]] = {
        Control.POSITIVE: "every attack must invert an encoder that sends the picture itself"
        " (one that needs a structure: the easiest network that has it)",
        Control.NEGATIVE: "reconstructions must not fit the pictures of other victims",
        Control.CANARY: "the strongest trained attack must find parts of the picture that are planted, at random"
        " places and amplitudes, in the features before the defence acts on them; where all pictures of a label are"
        " released alike, nothing planted could get through, and it must do as well as a table of what is released",
        Control.BUDGET: "a larger budget, another start and more data must not let the strongest trained attack"
        " rebuild more",
    }

    def victims(
        self, splits: Splits, count: int, seed: int, source: Literal["heldout", "private", "both"] = "heldout"
    ) -> ImageSet:
        if source == "both":
            return joined(
                self.victims(splits, count // 2, seed, "private"), self.victims(splits, count - count // 2, seed)
            )
        pictures = splits.heldout if source == "heldout" else splits.private
        name = ("victims",) if source == "heldout" else ("victims", source)
        order = torch.randperm(len(pictures), generator=seeds.generator(seed, *name))
        return pictures.take(order[:count].sort().values)

    def metrics(self, asked: Sequence[Scored]) -> list[Scored]:
        return [metric for metric in asked if isinstance(metric, Metric)]

    @torch.no_grad()
    def observe(self, split: SplitModel, victims: ImageSet, rng: torch.Generator) -> Observed:
        def released(part: Tensor) -> Tensor:
            return split.release(part.to(rng.device), rng)

        size = released_at_once(split, victims.images[:1].to(rng.device))
        parts = list(in_chunks(released, victims.images, size=size, what="release", rngs=(rng,)))
        return Observed(features=torch.cat(parts))

    @torch.no_grad()
    def read(self, split: SplitModel, victims: ImageSet, seen: Observed) -> Tensor | None:
        if seen.features is None:
            return None
        start = victims.images[:1].to(seen.features.device)
        parts = seen.features.split(BATCH)
        scores = [split.decide(part, start.expand(len(part), -1, -1, -1)) for part in parts]
        return torch.cat(scores).argmax(1).clamp_max(len(victims.classes) - 1).cpu()

    def score(self, case: Case, guess: Tensor, place: Workplace, read: Tensor | None = None) -> Scores:
        scene, victims = case.scene, case.victims
        values = measured(scene, guess, victims, case.public)
        others = victims.take(torch.arange(len(victims)).roll(1))
        leak = [metric for metric in scene.metrics if metric.name == "leak"]
        swapped = measured(scene, guess, others, case.public, leak)["leak"]
        scale = squared_error(victims.images, class_means(case.public, victims.labels))
        own = 1 - squared_error(guess, victims.images) / scale.clamp_min(torch.finfo(scale.dtype).tiny)
        found = Scores(values, swapped.mean().item(), scale=scale.float(), exposed=int((own > EXPOSED).sum()))
        if case.kind != "result":
            return found  # a control's head says nothing
        read = self.labels_read(case, place) if read is None else read
        floor = measured(scene, class_means(case.public, read), victims, case.public, leak)["leak"].mean().item()
        accuracy = (read == victims.labels).float().mean().item()
        return replace(found, label_floor=floor, observed_accuracy=accuracy)

    @torch.no_grad()
    def labels_read(self, case: Case, place: Workplace) -> Tensor:
        """The labels that the head reads when the victims are released anew, as they were for the attack."""
        rng = seeds.generator(case.seed, "victims", "release", device=place.device)
        split = case.target.split

        def labels(part: Tensor) -> Tensor:
            return split.run(part.to(place.device), rng).scores.argmax(1)

        size = released_at_once(split, case.victims.images[:1].to(place.device))
        parts = list(in_chunks(labels, case.victims.images, size=size, what="labels", rngs=(rng,)))
        return torch.cat(parts).cpu().clamp_max(len(case.victims.classes) - 1)

    def floors(self, scene: Scene, attacks: Sequence[Attack], place: Workplace) -> dict[str, dict[str, Summary]]:
        public, victims = scene.public, scene.first_victims
        metrics = [metric for metric in scene.metrics if not metric.of_set]
        return {
            name: summaries(measured(scene, guess(public, victims), victims, public, metrics), metrics)
            for name, guess in FLOORS.items()
        }

    def flags(self, scene: Scene) -> list[Flag]:
        known = set(scene.public.labels.tolist())
        absent = not set(scene.first_victims.labels.tolist()) <= known
        found = [Flag(FlagId.SINGLE_CLASS_MEANS, scene.short_data_name)] if absent else []
        twins = sum(near_duplicates(scene.public, scene.victims(seed)) for seed in scene.config.chosen_seeds)
        return [
            *found,
            *([Flag(FlagId.NEAR_DUPLICATES, f"{twins} victims of {scene.short_data_name}")] if twins else []),
        ]

    def control(self, scene: Scene, target: TargetSpec, attack: Attack, place: Workplace) -> list[ControlResult]:
        """Leak of an attack on an encoder that hides nothing.

        An attack that fails on the audit's own pictures gets easy ones: succeeding there it works, but was
        given too little to learn these; failing there too, it is broken.
        """
        shape = train_target(scene, target, place).record.feature_shape
        picture = scene.splits.private.shape
        size = shape if attack.control == "identity" else picture
        split = stand_ins.CONTROLS[attack.control](size, len(scene.splits.private.classes))
        stand_in = _stand_in(scene, split, attack.control, size, target, place)
        leak = run_case(Case.of(scene, stand_in, attack, kind="checked"), place).leak
        passed, flag = leak >= stand_ins.POSITIVE_LEAK, None
        if not passed:
            public = stand_ins.easy_pictures(min(len(scene.public), 1000), picture, "public")
            victims = stand_ins.easy_pictures(len(scene.first_victims), picture, "victims")
            easy = _stand_in(scene, split, f"{attack.control}, easy pictures", size, target, place)
            case = Case.of(scene, easy, attack, kind="checked", public=public, victims=victims)
            works = run_case(case, place).leak >= stand_ins.POSITIVE_LEAK
            flag = FlagId.WEAK_ON_CONTROL if works else FlagId.CONTROL_FAILED
        return [ControlResult(Control.POSITIVE, label(attack), leak, stand_ins.POSITIVE_LEAK, passed, flag)]

    def checks(
        self, scene: Scene, target: TargetSpec, attack: Attack, result: AttackResult, place: Workplace
    ) -> list[ControlResult]:
        made = train_target(scene, target, place)
        found = budget_checks(scene, made, attack, result, place)
        if attack.control == "identity":
            told = made.record.told_apart > UNEVEN[0]
            found.append((_canary if told else _table)(scene, made, target, attack, result, place))
        return found

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
            )
            for result in results
        )


def measured(
    scene: Scene, guess: Tensor, truth: ImageSet, public: ImageSet, metrics: Sequence[Scored] | None = None
) -> dict[str, Tensor]:
    """Every metric of pictures against the true ones."""
    reference = Reference(class_means(public, truth.labels), scene.config.data_root)
    return {
        metric.name: metric(guess, truth.images, reference).detach().cpu()
        for metric in (scene.metrics if metrics is None else metrics)
        if isinstance(metric, Metric)
    }


def _canary(
    scene: Scene, target: Target, spec: TargetSpec, attack: Attack, result: AttackResult, place: Workplace
) -> ControlResult:
    """Whether the attack finds what was planted in the features."""
    rng = seeds.generator(spec.seed, "canary", target.key)
    planted = stand_ins.canary(target.split, scene.splits.public.images, rng)
    case = Case.of(scene, _stand_in(scene, planted, f"canary of {target.key}", (), spec, place), attack, kind="checked")
    guess, victims = reconstruct(case, place).images, case.victims
    value = stand_ins.canary_leak(planted, guess, victims.images, class_means(case.public, victims.labels))
    return ControlResult(
        Control.CANARY, label(attack), value, stand_ins.CANARY_LEAK, value >= stand_ins.CANARY_LEAK,
        FlagId.CANARY_MISSED, result.key, target.record.name,
    )  # fmt: skip


#: Public pictures that a table of releases is made of, at most.
_TABLE = 1000


def _table(
    scene: Scene, target: Target, spec: TargetSpec, attack: Attack, result: AttackResult, place: Workplace
) -> ControlResult:
    """Whether the attack does as well as the mean public picture of what is released alike.

    Where a release takes few values whatever random numbers it meets, that mean is the best guess there is.
    A victim whose release no public picture shares would be told apart, and fails the control.
    """
    case = Case.of(scene, target, attack, kind="checked")
    public, victims = case.public.images[:_TABLE], case.victims.images
    seen = one_by_one(target.split, victims.to(place.device))
    known = one_by_one(target.split, public.to(place.device))
    same = alike(seen, known, rounding(target.split, victims.to(place.device))).double().cpu()
    guess = (same @ public.flatten(1).double() / same.sum(1, keepdim=True).clamp_min(1)).float().view_as(victims)
    leak = [metric for metric in scene.metrics if metric.name == "leak"]
    least = measured(scene, guess, case.victims, case.public, leak)["leak"].mean().item() - BLIND
    passed = result.leak >= least and bool((same.sum(1) > 0).all())
    return ControlResult(
        Control.CANARY, label(attack), result.leak, least, passed, FlagId.CANARY_MISSED, result.key, target.record.name
    )


def _stand_in(
    scene: Scene, split: SplitModel, name: str, shape: tuple[int, ...], spec: TargetSpec, place: Workplace
) -> Target:
    """A control network used as a target, with its own key."""
    key = digest({"control": name, "shape": list(shape), "splits": scene.splits_digest})
    return stand_ins.stand_in(scene, split, key, name, spec, place)
