"""A configuration becomes a plan: everything is checked before anything is trained."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.auditing.suite import suite
from leakscope.auditing.verdict import Gate
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.data import ImageSet, Splits
from leakscope.core.defense import Defense, build_defense, members
from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Metric
from leakscope.core.model import SplitModel, cuts
from leakscope.core.spec import describe, digest, label
from leakscope.core.threat import ThreatModel
from leakscope.data.images import checked
from leakscope.data.split_index import read_index
from leakscope.data.splits import SplitIndex
from leakscope.metrics.recognition import MEASURES, Measure
from leakscope.models.architecture import Architecture
from leakscope.models.resolve import instantiate, resolve
from leakscope.models.weights import file_digest, load_weights
from leakscope.pipeline.config import AuditConfig, load_data


@dataclass(frozen=True)
class Plan:
    """Everything an audit needs, checked and built; nothing trained yet."""

    config: AuditConfig
    data: ImageSet
    index: SplitIndex | None  # None: the splits were read from a file
    splits: Splits
    data_name: str
    victims: ImageSet
    architecture: Architecture
    model_name: str
    weights: Path | None
    weights_digest: str | None
    cuts: list[str]
    client_compute: dict[str, float]
    defenses: list[Defense]
    attacks: list[Attack]  # all that run on any target
    suited: dict[tuple[str, Defense], list[Attack]]  # those that run on a target
    left_out: list[dict[str, str]]  # and those that cannot, with the reason
    suite: str
    metrics: list[Metric] | list[Measure]
    unavailable: dict[str, str]
    threat: ThreatModel
    seeds: list[int]
    gate: Gate | None
    rebuilds_classes: bool  # the attacks ask what classes look like, not what a user sent
    data_root: Path | None

    @property
    def grid(self) -> list[tuple[str, Defense, int]]:
        """Every target: cut, defence, seed."""
        return [(cut, defense, seed) for seed in self.seeds for cut in self.cuts for defense in self.defenses]

    def build(self, cut: str, defense: Defense, seed: int) -> SplitModel:
        """The untrained network with its defence, initialised from the seed's own generator."""
        with seeds.ambient(seed, "target", "init"):
            model = instantiate(self.architecture, self.splits.private.shape, len(self.splits.private.classes))
            if self.weights is not None:
                load_weights(model, self.weights)
            split = SplitModel(model, cut, normalize=self.architecture.normalization(), defense=defense)
            split = defense.rebuild(split.eval(), self.splits.public.images[:2])
            self.architecture.fill(split)
            return split


def make_plans(configs: Mapping[str, AuditConfig]) -> dict[str, Plan]:
    """The plan of every variant, all checked before any runs; pictures that several share are read once."""
    read: dict[str, ImageSet] = {}
    plans = {}
    for name, config in configs.items():
        source = digest([config.data, config.resize, str(config.data_root)])
        try:
            if source not in read:
                read[source] = load_data(config, config.data_root)
            plans[name] = make_plan(config, data=read[source])
        except UsageError as error:
            raise UsageError(f"variant {name}: {error}" if name else str(error)) from None
    return plans


def make_plan(config: AuditConfig, *, data: ImageSet | None = None, architecture: Architecture | None = None) -> Plan:
    """Check every part of a configuration and build what it names; all problems come in one message."""
    problems: list[str] = []

    def attempt(make: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return make(*args, **kwargs)
        except UsageError as error:
            problems.append(str(error))
            return None

    architecture = architecture or attempt(resolve, config.model)
    # A network that comes with a defence is audited with it unless told otherwise.
    carried = None if architecture is None else architecture.defense
    wanted = config.defenses if carried is None or "defenses" in config.model_fields_set else [carried]
    defenses = [defense for spec in wanted if (defense := attempt(build_defense, spec)) is not None]
    metrics = [metric for spec in config.metrics if (metric := attempt(METRICS.build, spec)) is not None]
    chosen = config.attacks or ("quick" if config.evidence == "E0" else "full")
    specs = (attempt(suite, chosen) or []) if isinstance(chosen, str) else chosen
    attacks = [attack for spec in specs if (attack := attempt(ATTACKS.build, spec)) is not None]
    threat = config.threat.model()
    attacks = _allowed(attacks, threat, explicit=not isinstance(chosen, str), problems=problems)
    of_classes = {attack.rebuilds_classes for attack in attacks}
    if len(of_classes) > 1:
        problems.append("attacks on classes and on pictures answer different questions; audit them one by one")
    unavailable = {m.name: why for m in metrics if (why := m.unavailable(config.data_root)) is not None}
    # A gate judges pictures one by one; a metric of the whole set has no worst case.
    computed = {m.name: m.more_leak for m in metrics if m.name not in unavailable and not m.of_set}
    if metrics and "leak" not in computed:
        problems.append("metrics must include 'leak': floors, controls and flags are built on it")
    if of_classes == {True}:
        computed = {name: measure.more_leak for name, measure in MEASURES.items()}
    gate = attempt(Gate.parse, config.gate, computed) if config.gate else None
    if config.training.epochs == 0:
        problems += [
            f"{part.kind_name} acts in training only; ask for epochs, or choose a defence of the release"
            for defense in defenses
            for part in members(defense)
            if part.kind_name != "none" and not _acts_without_training(part) and describe(defense) != carried
        ]
    if architecture is not None and not (config.pretraining or config.weights or architecture.trained):
        problems += [
            f"{part.kind_name} keeps layers as they were before private training, and nothing was learned by then; "
            "set pretraining, such as {training: {epochs: 10}}, or give weights"
            for part in dict.fromkeys(part for defense in defenses for part in members(defense))
            if part.keeps_first_weights
        ][:1]
    if config.weights is not None and not config.weights.exists():
        problems.append(f"no weights at {config.weights}; give a safetensors file")
    if problems:
        raise UsageError("; ".join(problems))

    data = checked(data) if data is not None else load_data(config, config.data_root)
    if not data.pixels:
        unavailable |= {metric.name: "measures pictures only" for metric in metrics if not metric.of_points}
    index: SplitIndex | None = None
    if config.split_index is not None:
        splits = read_index(data, config.split_index)
    else:
        index = config.splits.index(data, seed=0)
        splits = index.splits(data)
    assert architecture is not None
    with seeds.ambient(0, "plan"):
        model = instantiate(architecture, splits.private.shape, len(splits.private.classes)).eval()
    if config.weights is not None:
        load_weights(model, config.weights)
    names, compute = _checked_cuts(config, architecture, model, splits)
    explicit = not isinstance(chosen, str)
    suited, left_out = _suited(attacks, defenses, names, threat, architecture, model, splits, explicit=explicit)
    if of_classes == {True}:
        _require_class_attacks(attacks, config, splits)
    return Plan(
        config=config,
        data=data,
        index=index,
        splits=splits,
        data_name=_data_name(config),
        victims=_identities(splits, config.victims) if of_classes == {True} else _pictures(splits, config.victims),
        architecture=architecture,
        model_name=label(architecture),
        weights=config.weights,
        weights_digest=file_digest(config.weights) if config.weights else None,
        cuts=names,
        client_compute=compute,
        defenses=defenses,
        attacks=list(dict.fromkeys(attack for own in suited.values() for attack in own)),
        suited=suited,
        left_out=left_out,
        suite=chosen if isinstance(chosen, str) else "custom",
        metrics=(
            list(MEASURES.values())
            if of_classes == {True}
            else [metric for metric in metrics if metric.name not in unavailable]
        ),
        unavailable=unavailable,
        threat=threat,
        seeds=config.seeds or ([0] if config.evidence == "E0" else [0, 1, 2]),
        gate=gate,
        rebuilds_classes=of_classes == {True},
        data_root=config.data_root,
    )


def _pictures(splits: Splits, count: int) -> ImageSet:
    """Held-out pictures to attack."""
    order = torch.randperm(len(splits.heldout), generator=seeds.generator(0, "victims"))
    return splits.heldout.take(order[:count].sort().values)


def _identities(splits: Splits, count: int) -> ImageSet:
    """Classes to rebuild, each shown by the first of its private pictures."""
    private = splits.private
    present = private.labels.unique()
    order = torch.randperm(len(present), generator=seeds.generator(0, "identities"))
    chosen = present[order[:count]].sort().values
    first = (private.labels[None] == chosen[:, None]).int().argmax(1)
    return private.take(first)


def _require_class_attacks(attacks: list[Attack], config: AuditConfig, splits: Splits) -> None:
    """Refuse class attacks that cannot mean anything here, before anything is trained."""
    present = len(splits.private.labels.unique())
    if present < 2:
        raise UsageError("class attacks need a target with two classes or more")
    if not config.splits.by_identity and config.split_index is None:
        raise UsageError("class attacks need public classes that are not private: set splits.by_identity=true")
    splits.require_disjoint_identities()
    resolve(config.evaluator.model)
    for attack in attacks:
        prior = getattr(attack, "prior", None)
        if prior is not None:
            prior.require(splits.public.shape)
        least, allowed = attack.least_queries(min(config.victims, present)), config.threat.queries
        if allowed is not None and allowed < least:
            raise UsageError(
                f"{attack.kind_name} starts with {least} queries and threat.queries is {allowed}; raise it, or attack "
                "fewer classes"
            )


def _acts_without_training(defense: Defense) -> bool:
    """Whether a defence changes what leaves the client even when nothing is trained."""
    return any(getattr(type(defense), hook) is not getattr(Defense, hook) for hook in ("release", "rebuild"))


def _data_name(config: AuditConfig) -> str:
    return config.data if isinstance(config.data, str) else str(config.data.get("kind"))


def _allowed(attacks: list[Attack], threat: ThreatModel, *, explicit: bool, problems: list[str]) -> list[Attack]:
    """The attacks that the threat model lets happen; one the user asked for by name must be among them."""
    kept = []
    for attack in attacks:
        try:
            threat.require(attack.needs, attack.kind_name)
            kept.append(attack)
        except UsageError as error:
            if explicit:
                problems.append(str(error))
    if attacks and not kept and not explicit:
        problems.append("the threat model allows no attack of the suite; grant features and query, or name attacks")
    return kept


def _with_adaptive(attacks: list[Attack], defense: Defense, threat: ThreatModel) -> list[Attack]:
    present = {attack.kind_name for attack in attacks}
    extra = [
        ATTACKS.build(name)
        for part in members(defense)
        for name in part.adaptive
        if name not in present
        and ATTACKS[name].needs <= threat.access
        and any(ATTACKS[name].rebuilds_classes == attack.rebuilds_classes for attack in attacks)
    ]
    return attacks + list(dict.fromkeys(extra)) if threat.knows_defense else attacks


def _checked_cuts(
    config: AuditConfig, architecture: Architecture, model: nn.Module, splits: Splits
) -> tuple[list[str], dict[str, float]]:
    """The cuts to audit and the share of compute before each; refuses layers that do not separate."""
    found = cuts(model, splits.public.images[:2], architecture.normalization())
    compute = {cut.name: cut.compute for cut in found}
    wanted = config.cuts or [cut for cut in architecture.default_cuts if cut in compute]
    if not wanted:
        # No cut asked for and none proposed: after a fifth of the network's compute.
        wanted = [min(found, key=lambda cut: abs(cut.compute - 0.2)).name] if found else []
    names = {name for name, _ in model.named_modules() if name}
    for cut in wanted:
        if cut not in compute:
            near = difflib.get_close_matches(cut, compute, n=3, cutoff=0.4) or list(compute)[:8]
            reason = "does not separate the network" if cut in names else "is no layer"
            raise UsageError(f"{label(architecture)}: {cut!r} {reason}; cuts: {', '.join(near)} (see `leakscope cuts`)")
    return wanted, {cut: compute[cut] for cut in wanted}


def _suited(
    attacks: list[Attack],
    defenses: list[Defense],
    cuts: list[str],
    threat: ThreatModel,
    architecture: Architecture,
    model: nn.Module,
    splits: Splits,
    *,
    explicit: bool,
) -> tuple[dict[tuple[str, Defense], list[Attack]], list[dict[str, str]]]:
    """The attacks of every target, with those made against its defence; what cannot run there drops out.

    An attack the user asked for by name must be able to run on one target at least.
    """
    suited: dict[tuple[str, Defense], list[Attack]] = {}
    left_out: list[dict[str, str]] = []
    for cut in cuts:
        plain = SplitModel(model, cut, normalize=architecture.normalization())
        for defense in defenses:
            with seeds.ambient(0, "plan", "rebuild"):
                split = _rebuilt(plain, defense, splits.public.images[:2])
            wanted = _with_adaptive(attacks, defense, threat)
            reasons = {attack: attack.unsuited(split, splits.private.shape) for attack in wanted}
            suited[cut, defense] = [attack for attack, reason in reasons.items() if reason is None]
            left_out += [
                {"attack": label(attack), "defense": label(defense), "cut": cut, "reason": reason}
                for attack, reason in reasons.items()
                if reason is not None
            ]
    running = {attack for own in suited.values() for attack in own}
    for attack in attacks if explicit else []:
        if attack not in running:
            reason = next(entry["reason"] for entry in left_out if entry["attack"] == label(attack))
            raise UsageError(f"{attack.kind_name}: {reason}")
    for (cut, defense), own in suited.items():
        if not own:
            raise UsageError(f"no attack can run on {label(defense)} at {cut}; name another attack or cut")
    return suited, left_out


def _rebuilt(plain: SplitModel, defense: Defense, example: Tensor) -> SplitModel:
    """The network as the defence rebuilds it; the shared one when it does not."""
    if all(type(part).rebuild is Defense.rebuild for part in members(defense)):
        return plain
    return defense.rebuild(copy.deepcopy(plain), example)


def resolved_config(plan: Plan) -> dict[str, Any]:
    """The configuration as it was run, every default written out."""
    source = {} if plan.config._source is None else {"source": str(plan.config._source)}
    return {
        **source,
        **plan.config.model_dump(mode="json", exclude={"scales", "variants"}),
        "cuts": plan.cuts,
        "seeds": plan.seeds,
        "defenses": [describe(defense) for defense in plan.defenses],
        "attacks": [describe(attack) for attack in plan.attacks],
        "metrics": [metric.name if isinstance(metric, Measure) else describe(metric) for metric in plan.metrics],
        "model": describe(plan.architecture),
    }
