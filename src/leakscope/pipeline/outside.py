"""Attacks by others: their reconstructions are scored as ours are, and stand beside ours in every audit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from leakscope.core.attack import Attack, Observed, Prepared
from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.spec import Plain, digest, label
from leakscope.core.threat import Access, View
from leakscope.pipeline.about import about
from leakscope.pipeline.config import Threat
from leakscope.pipeline.desk import Desk, Finding
from leakscope.pipeline.execute import Case, Target, Workplace, realise, run_scores, summaries, target_plan
from leakscope.pipeline.plan import Plan


class Card(BaseModel):
    """Who attacked, how, and with what in hand; no score without it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=60, description="what the attack is called")
    by: str = Field(min_length=1, description="who carried it out")
    how: str = Field(min_length=1, description="a sentence or two, or a reference")
    threat: Threat = Field(description="what they were handed")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of the file of reconstructions")
    url: str | None = Field(None, description="where to read more")

    @classmethod
    def read(cls, path: Path) -> Card:
        try:
            tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
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
        content = path.read_bytes()
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
        raise UsageError(f"{path} holds {got}, the victims are {wanted}: one picture a victim, in their order")
    guess = guess.float()
    if not torch.isfinite(guess).all() or (victims.pixels and (guess.min() < 0 or guess.max() > 1)):
        raise UsageError(f"{path} holds values that are no pixels; clamp them to [0, 1]")
    return guess


def submit(plan: Plan, place: Workplace, path: Path, card: Card, command: str) -> dict[str, Any]:
    """Score reconstructions of a plan's victims from its one target, and keep them; the row of the result."""
    if len(plan.grid) != 1:
        raise UsageError(f"the plan has {len(plan.grid)} targets; name one cut, one defence and one seed")
    if plan.rebuilds_classes:
        raise UsageError("outside attacks on classes cannot be judged yet; hand in reconstructions of pictures")
    guess = read_reconstructions(path, card, plan.victims)
    cut, defense, seed = plan.grid[0]
    target = realise(plan, target_plan(plan, cut, defense, seed), place)
    facts = {**about(plan), "command": command, "outside": card.model_dump(mode="json")}
    case = _case(plan, target, card, seed, facts)
    victims = plan.victims.digest()
    attack = case.plan.key(victims)
    plain = {"card": card.model_dump(mode="json"), "target": target.key}
    place.store.put("attack", attack, {"plan": plain, "notes": {"outside": True}}, {"guess": guess})
    key, values = run_scores(attack, guess, case, plan.metrics, plan.data_root, place)
    kept = {"target": target.key, "victims": victims, "attack": attack, "seed": seed, "facts": facts}
    place.store.put("outside", digest({"attack": attack, "victims": victims}), {"summary": kept})
    return _row(case, key, values, plan)


def outside_findings(desk: Desk, target: Target) -> list[Finding]:
    """What others handed in against a target, scored with the metrics of this plan."""
    plan, store = desk.plan, desk.place.store
    if plan.rebuilds_classes or not store.keys("outside"):
        return []
    victims = plan.victims.digest()
    found = []
    for kept in store.summaries("outside").values():
        entry = store.get("attack", kept["attack"])
        if (kept["target"], kept["victims"]) != (target.key, victims) or entry is None:
            continue
        card = Card.model_validate(kept["facts"]["outside"])
        case = _case(plan, target, card, kept["seed"], kept["facts"])
        guess = entry.tensors()["guess"]
        key, values = run_scores(kept["attack"], guess, case, plan.metrics, plan.data_root, desk.place)
        found.append(Finding(case, key, guess, values, _row(case, key, values, plan)))
    return found


def _case(plan: Plan, target: Target, card: Card, seed: int, facts: Plain) -> Case:
    attack = Outside(card.name, card.sha256)
    return Case(target, attack, card.threat.model(), plan.splits.public, plan.victims, seed, about=facts)


def _row(case: Case, key: str, values: dict[str, Tensor], plan: Plan) -> dict[str, Any]:
    return {
        "key": key,
        "target": case.target.key,
        **{name: case.target.record[name] for name in ("model", "defense", "cut", "seed", "accuracy")},
        "attack": label(case.attack),
        "flags": [],
        "metrics": summaries(values, plan.metrics),
        "seconds": 0.0,
        "notes": {"queries": case.threat.queries, "by": case.about["outside"]["by"]},
    }
