"""Attacks by others: their reconstructions are scored as ours are, and stand beside ours in every audit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NoReturn

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from leakscope.core.attack import Attack, Observed, Prepared
from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.files import require_file
from leakscope.core.results import AttackResult, Diagnostics, Finding, Traits, to_json
from leakscope.core.spec import digest
from leakscope.core.threat import Access, View
from leakscope.core.yaml_text import read_yaml
from leakscope.experiments.config import Threat
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.plan import Plan
from leakscope.experiments.reading import read_result
from leakscope.experiments.scene import Scene
from leakscope.experiments.stages import Case, Target, read_rebuilt, score, train_target
from leakscope.experiments.workplace import Workplace
from leakscope.store import Store


class Card(BaseModel):
    """Who attacked, how, and with what in hand; no score without it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=60, description="what the attack is called")
    by: str = Field(min_length=1, description="who carried it out")
    how: str = Field(min_length=1, description="a sentence or two, or a reference")
    threat: Threat = Field(description="what they were handed")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of the file of reconstructions")
    url: str | None = Field(None, description="where to read more")

    @classmethod
    def read(cls, path: Path) -> Card:
        tree = read_yaml(path)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            problems = (f"{'.'.join(map(str, item['loc'])) or 'card'}: {item['msg']}" for item in error.errors())
            raise UsageError(f"{path}: {'; '.join(problems)}; it needs {', '.join(cls.model_fields)}") from None


@dataclass(frozen=True)
class Outside(Attack):
    """Somebody else's attack: it ran elsewhere, and its reconstructions were handed in."""

    kind_name: ClassVar[str] = "outside"
    revision: ClassVar[int] = 1
    needs: ClassVar[frozenset[Access]] = frozenset()
    averages_noise: ClassVar[bool] = True  # nobody here can know; the flag is for attacks of ours
    control: ClassVar[str] = "elsewhere"

    name: str
    reconstructions: str = field(metadata={"shown": False})  # SHA-256 of what was handed in

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> NoReturn:
        raise NotImplementedError("it ran elsewhere; only its reconstructions are here")


def read_reconstructions(path: Path, card: Card, victims: ImageSet) -> Tensor:
    """One picture for each victim, checked against the card and the victims' shape."""
    try:
        content = require_file(path).read_bytes()
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise UsageError(f"cannot read {path} ({str(error).splitlines()[0]}); give a safetensors file") from None
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise UsageError(f"{path} is not the file of the card (SHA-256 differs); hand in the one it was written for")
    guess = tensors.get("guess", next(iter(tensors.values())) if len(tensors) == 1 else None)
    if guess is None:
        raise UsageError(f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}; name the reconstructions 'guess'")
    if guess.shape != victims.images.shape:
        wanted, got = ("×".join(map(str, shape)) for shape in (victims.images.shape, guess.shape))
        raise UsageError(f"{path} holds {got}, the victims are {wanted}: one picture per victim, in their order")
    guess = guess.float()
    if not torch.isfinite(guess).all() or (victims.pixels and (guess.min() < 0 or guess.max() > 1)):
        raise UsageError(f"{path} holds values that are no pixels; clamp them to [0, 1]")
    return guess


def submit(plan: Plan, place: Workplace, path: Path, card: Card, command: str) -> Finding:
    """Score reconstructions of a plan's victims from its one target, and keep them."""
    if len(plan.targets) != 1:
        raise UsageError(f"the plan has {len(plan.targets)} targets; name one cut, one defence and one seed")
    scene = plan.scene
    if scene.goal.kind_name != "pictures":
        raise UsageError("outside attacks on classes cannot be judged yet; hand in reconstructions of pictures")
    guess = read_reconstructions(path, card, scene.first_victims)
    target = train_target(scene, plan.targets[0], place)
    case = _case(scene, target, card, command)
    key = case.spec.key(scene.first_victims.digest())
    found = Diagnostics(queries=card.threat.queries or 0)
    record = {"plan": {"card": card.model_dump(mode="json"), "target": target.key}, "diagnostics": to_json(found)}
    place.store.put("attack", key, record, {"guess": guess})
    rebuilt = read_rebuilt(place.store, key)
    assert rebuilt is not None
    result = score(case, rebuilt, place)
    kept = {
        "target": target.key, "victims": scene.first_victims.digest(), "attack": key, "result": result.key,
        "card": card.model_dump(mode="json"), "command": command,
    }  # fmt: skip
    place.store.put("outside", digest({"attack": key, "victims": scene.first_victims.digest()}), {"summary": kept})
    return Finding(target.record, result)


def outside_results(scene: Scene, spec: TargetSpec, store: Store) -> list[AttackResult]:
    """What others handed in against a target and its victims."""
    if not store.keys("outside"):
        return []
    kept = [Submitted.model_validate(summary) for summary in store.summaries("outside").values()]
    wanted = {metric.name for metric in scene.metrics}
    found = []
    for one in kept:
        if (one.target, one.victims) == (spec.key, scene.first_victims.digest()):
            result = read_result(store, one.result)
            if wanted <= result.metrics.keys():
                found.append(result)
    return found


class Submitted(BaseModel):
    """What the store keeps of a submission."""

    target: str
    victims: str
    attack: str
    result: str
    card: Card
    command: str


def _case(scene: Scene, target: Target, card: Card, command: str) -> Case:
    attack = Outside(card.name, card.sha256)
    extra = {"traits": Traits(outside=True), "command": command, "by": card.by}
    return Case.of(scene, target, attack, threat=card.threat.model(), extra=extra)
