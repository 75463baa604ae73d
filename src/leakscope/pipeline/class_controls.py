"""Controls and floors of class attacks: what a rebuilt identity is compared with.

A class attack shapes a picture until the target accepts it, so the target's opinion proves nothing.
The evaluation network's does, if it stays at chance wherever there is nothing to rebuild.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.auditing import controls
from leakscope.auditing.flags import Flag
from leakscope.auditing.floors import mean_image, nearest_public_image
from leakscope.core import progress, seeds
from leakscope.core.attack import Attack
from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.spec import digest, label
from leakscope.metrics.recognition import Judged, recognition
from leakscope.metrics.summary import summarize
from leakscope.pipeline.desk import Desk, Finding
from leakscope.pipeline.evaluator import EvaluationNetwork
from leakscope.pipeline.execute import Target, judged, summaries, target_plan
from leakscope.pipeline.train import train

#: Share of its reconstructions that an attack with gradients must make its own target accept.
ACCEPTED = 0.9
#: Pictures of a prior for each identity, for its floor.
_SAMPLES = 5


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


def class_controls(desk: Desk) -> dict[str, Any]:
    """Positive: a target that hides nothing. Negative: targets that know nothing, and other people's names."""
    judge = desk.judge
    assert judge is not None
    shuffled = {f"{attack}, shuffled identities": low for attack, low in _shuffled(desk, judge).items()}
    found = {label(attack): class_control(desk, attack) for attack in desk.plan.attacks}
    accepted = {name: control["accepted"] for name, control in found.items()}
    ignorant = {f"{name}, {who}": low for name, own in found.items() for who, low in own["ignorant"].items()}
    values = {**shuffled, **ignorant}
    worst = max(values.values())
    return {
        "positive": {
            "passed": all(value >= ACCEPTED for value in accepted.values()),
            "required": ACCEPTED,
            "attacks": accepted,
            "what": "a target that scores the distance to each class's mean picture must accept what was rebuilt",
            "ceiling": judge.ceiling,
        },
        "negative": {
            "passed": worst <= controls.NEGATIVE_LEAK,
            "required": controls.NEGATIVE_LEAK,
            "value": worst,
            "targets": values,
            "what": "nobody is recognised where nothing is known: a random target, one trained on permuted"
            " labels, the names of other identities (low end of the 95 % interval of leak)",
        },
        "canary": {"passed": None, "what": "planted features are a control of attacks on pictures"},
    }


def class_control(desk: Desk, attack: Attack) -> dict[str, Any]:
    """One attack on a target that hides nothing, and on those that know nothing (low ends of leak)."""
    return {
        "accepted": _accepted(desk, attack),
        "ignorant": {target.record["model"]: _at_chance(desk, target, attack) for target in _ignorant(desk)},
    }


def _accepted(desk: Desk, attack: Attack) -> float:
    split = templates(desk.plan.splits.private)
    target = _stand_in(desk, "class templates", "squared distances", split)
    finding = desk.attack(target, attack, desk.plan.seeds[0])
    value = float(finding.row["metrics"]["target-accuracy"]["mean"])
    if value < ACCEPTED:
        desk.flags.append(Flag("class-control-failed", label(attack)))
    return value


def _ignorant(desk: Desk) -> list[Target]:
    """Targets with nothing to give away: fresh weights, and weights fitted to permuted labels."""
    plan, place = desk.plan, desk.place
    seed, cut = plan.seeds[0], plan.cuts[0]
    none = next((defense for defense in plan.defenses if defense.kind_name == "none"), plan.defenses[0])
    fresh = plan.build(cut, none, seed).to(place.device).eval()
    private = plan.splits.private
    permuted = ImageSet(
        private.images,
        private.labels[torch.randperm(len(private), generator=seeds.generator(seed, "permuted labels"))],
        private.classes,
    )
    twin = target_plan(plan, cut, none, seed)
    key = digest({"permuted": twin.plain()})
    split = copy.deepcopy(fresh).train()
    with place.store.claim("permuted", key) as done:
        if done is None:
            progress.say("training the target of permuted labels (negative control)")
            checkpoint = place.store.scratch("permuted", key) / "checkpoint.pt"
            split, history, _ = train(
                split, permuted, plan.config.training, seed=seed, device=place.device, checkpoint=checkpoint
            )
            place.store.put("permuted", key, {"history": vars(history)}, split.state_dict())
        else:
            split.load_state_dict(done.tensors())
    return [
        _stand_in(desk, "random weights", digest({"model": twin.model, "weights": twin.weights}), fresh),
        _stand_in(desk, "permuted labels", key, split.eval().requires_grad_(False)),
    ]


def _at_chance(desk: Desk, target: Target, attack: Attack) -> float:
    """The low end of the interval of leak on a target that knows nothing."""
    low = float(desk.attack(target, attack, desk.plan.seeds[0]).row["metrics"]["leak"]["low"])
    if low > controls.NEGATIVE_LEAK:
        desk.flags.append(Flag("negative-control", f"{label(attack)} on {target.record['model']}"))
    return low


def _shuffled(desk: Desk, judge: EvaluationNetwork) -> dict[str, float]:
    """The same reconstructions under the names of other identities."""
    found: dict[str, float] = {}
    for findings in desk.findings.values():
        for finding in findings:
            about = judged(finding.case, judge, finding.guess, desk.place.device)
            values = recognition(replace(about, classes=about.classes.roll(1)))["leak"]
            low = summarize(values, "high", seed=0).low
            name = label(finding.case.attack)
            found[name] = max(low, found.get(name, low))
            if low > controls.NEGATIVE_LEAK:
                desk.flags.append(Flag("negative-control", finding.where))
    return found


def _stand_in(desk: Desk, name: str, weights: str, split: SplitModel) -> Target:
    """A control in a target's place; `weights` tells what decides them beside the pictures."""
    seed = desk.plan.seeds[0]
    key = digest({"control": name, "weights": weights, "splits": desk.plan.splits.digest(), "seed": seed})
    record = {"model": name, "defense": "none", "cut": split.cut, "seed": seed, "accuracy": None}
    return Target(key, split.to(desk.place.device), record)


def class_floors(desk: Desk) -> dict[str, dict[str, dict[str, float]]]:
    """What somebody scores who never asked the target: public pictures, their mean, samples of each prior."""
    judge, plan = desk.judge, desk.plan
    assert judge is not None
    public, victims = plan.splits.public, plan.victims
    draw = torch.randint(len(public), (len(victims),), generator=seeds.generator(0, "floor"))
    guesses = {
        "mean": mean_image(public, victims).contiguous(),
        "random-public": public.images[draw],
        "nearest-public": nearest_public_image(public, victims),
        **_samples(desk),
    }
    return {
        name: summaries(recognition(_nobody(judge, guess, victims)), plan.metrics) for name, guess in guesses.items()
    }


def _samples(desk: Desk) -> dict[str, Tensor]:
    """Random pictures of every prior that does not read a target's scores."""
    priors = dict.fromkeys(prior for attack in desk.plan.attacks if (prior := getattr(attack, "prior", None)))
    case = next(iter(desk.findings.values()))[0].case
    view, found = case.view(desk.place), {}
    for prior in priors:
        if not prior.reads_scores:
            rng = seeds.generator(0, "floor", label(prior), device=desk.place.device)
            generator = view.prior(prior)
            count = _SAMPLES * len(desk.plan.victims)
            found[f"sample of {label(prior)}"] = generator.decode(generator.sample(count, rng)).detach().cpu()
    return found


def _nobody(judge: EvaluationNetwork, guess: Tensor, victims: ImageSet) -> Judged:
    """Judged without a target: it believes nothing."""
    return judge.judge(guess, victims.labels, torch.full((len(guess),), -1))


def unconverged(finding: Finding) -> bool:
    """Whether an attack with gradients left its own target unconvinced."""
    return finding.case.attack.white_box and finding.row["metrics"]["target-accuracy"]["mean"] < ACCEPTED
