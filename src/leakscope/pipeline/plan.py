"""A configuration becomes a plan: everything is checked before anything is trained."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from torch import nn

from leakscope.auditing.suite import suite
from leakscope.auditing.verdict import Gate
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.data import DATASETS, ImageSet, Splits
from leakscope.core.defense import Defense, build_defense, members
from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Metric
from leakscope.core.model import SplitModel, cuts
from leakscope.core.spec import describe, label
from leakscope.core.threat import Access, ThreatModel
from leakscope.data.images import checked, resized
from leakscope.data.split_index import read_index
from leakscope.data.splits import SplitIndex, SplitPlan
from leakscope.models.architecture import Architecture
from leakscope.models.resolve import instantiate, resolve
from leakscope.models.weights import file_digest, load_weights
from leakscope.pipeline.train import Training

Spec = str | dict[str, Any]


def _no_defense() -> list[Spec | list[Spec]]:
    return ["none"]


def _usual_metrics() -> list[Spec]:
    return ["leak", "mse", "psnr", "ssim", "cosine", "lpips"]


class Threat(BaseModel):
    """What the attacker is handed."""

    model_config = ConfigDict(extra="forbid")

    access: list[Access] = Field(default_factory=lambda: list(Access), description="what is handed over")
    public_data: bool = True
    knows_defense: bool = True
    queries: int | None = None

    def model(self) -> ThreatModel:
        return ThreatModel(frozenset(self.access), self.public_data, self.knows_defense, self.queries)


class AuditConfig(BaseModel):
    """One audit: data × model × cuts × defences × attacks × seeds."""

    model_config = ConfigDict(extra="forbid")

    data: Spec = Field("mnist5k", description="a data set: a name, folder:PATH, npz:PATH")
    data_root: Path | None = Field(None, description="where data files live; LEAKSCOPE_DATA when left out")
    resize: int | None = Field(None, ge=4, description="side in pixels to which pictures are resized")
    splits: SplitPlan = Field(default_factory=SplitPlan, description="sizes of private, heldout and public")
    split_index: Path | None = Field(None, description="a file of split indices, instead of drawing them")
    model: Spec = Field("convnet", description="a network: a name, torchvision:NAME, timm:NAME, FILE.py:FACTORY")
    weights: Path | None = Field(
        None, description="weights (safetensors) to audit; trained further only when training.epochs says so"
    )
    cuts: list[str] = Field(default_factory=list, description="layers to cut at; the model's own when empty")
    defenses: list[Spec | list[Spec]] = Field(default_factory=_no_defense)
    attacks: str | list[Spec] = Field("", description="a suite (quick, full) or a list; by evidence when empty")
    metrics: list[Spec] = Field(default_factory=_usual_metrics)
    threat: Threat = Field(default_factory=Threat)
    training: Training = Field(default_factory=Training)
    seeds: list[int] = Field(default_factory=list, description="target seeds; by evidence when empty")
    victims: int = Field(64, ge=2, description="how many held-out pictures are attacked")
    evidence: Literal["E0", "E1", "E2"] = Field("E0", description="the level to work for")
    gate: str | None = Field(None, description="leak<=0.2, ssim<=0.5 at E1")
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict, description="named overrides for --scale")

    _source: Path | None = PrivateAttr(None)  # the file it was read from

    @model_validator(mode="before")
    @classmethod
    def _given_weights_stay(cls, tree: Any) -> Any:
        """Weights that are given are audited as they are, unless epochs are asked for by name."""
        if isinstance(tree, dict) and tree.get("weights") is not None:
            training = tree.get("training") or {}
            if isinstance(training, dict) and "epochs" not in training:
                return {**tree, "training": {**training, "epochs": 0}}
        return tree

    @classmethod
    def read(cls, path: Path | None, overrides: Mapping[str, Any], scale: str | None = None) -> AuditConfig:
        """A YAML file with dotted overrides on top: `{"training.epochs": 3}`."""
        tree: dict[str, Any] = {}
        if path is not None:
            tree = read_yaml(path)
        if scale is not None:
            scales = tree.get("scales", {})
            if scale not in scales:
                raise UsageError(f"no scale {scale!r} in {path}; it has: {', '.join(scales) or 'none'}")
            for key, value in scales[scale].items():
                put(tree, key, value)
        for key, value in overrides.items():
            put(tree, key, value)
        config = cls.checked(tree)
        config._source = path
        return config

    @classmethod
    def checked(cls, tree: Mapping[str, Any]) -> AuditConfig:
        try:
            return cls.model_validate(dict(tree))
        except ValidationError as error:
            raise UsageError("; ".join(_problem(item, cls) for item in error.errors())) from None


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{path} must hold a mapping of settings, such as 'data: mnist5k'")
    return tree


def put(tree: dict[str, Any], dotted: str, value: object) -> None:
    """Set `tree["a"]["b"]` for `a.b`."""
    *path, last = dotted.split(".")
    for part in path:
        branch = tree.setdefault(part, {})
        if not isinstance(branch, dict):
            raise UsageError(f"cannot set {dotted!r}: {part!r} is not a group of settings")
        tree = branch
    tree[last] = value


def _problem(item: Any, cls: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        known = list(cls.model_fields) + list(Training.__dataclass_fields__) + list(Threat.model_fields)
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        return f"unknown setting {where!r}" + (f"; did you mean {near[0]!r}?" if near else "; see `leakscope schema`")
    return f"{where}: {item['msg']}"


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
    attacks: list[Attack]
    suite: str
    metrics: list[Metric]
    unavailable: dict[str, str]
    threat: ThreatModel
    seeds: list[int]
    gate: Gate | None
    data_root: Path | None

    def build(self, cut: str, defense: Defense, seed: int) -> SplitModel:
        """The untrained network with its defence, initialised from the seed's own generator."""
        with seeds.ambient(seed, "target", "init"):
            model = instantiate(self.architecture, self.splits.private.shape, len(self.splits.private.classes))
            if self.weights is not None:
                load_weights(model, self.weights)
            split = SplitModel(model, cut, normalize=self.architecture.normalization(), defense=defense)
            return defense.rebuild(split.eval(), self.splits.public.images[:2])


def load_data(config: AuditConfig, data_root: Path | None) -> ImageSet:
    """The pictures, checked and resized."""
    data = DATASETS.build(config.data).load(data_root)
    return checked(data if config.resize is None else resized(data, config.resize))


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
    defenses = [defense for spec in config.defenses if (defense := attempt(build_defense, spec)) is not None]
    metrics = [metric for spec in config.metrics if (metric := attempt(METRICS.build, spec)) is not None]
    chosen = config.attacks or ("quick" if config.evidence == "E0" else "full")
    specs = (attempt(suite, chosen) or []) if isinstance(chosen, str) else chosen
    attacks = [attack for spec in specs if (attack := attempt(ATTACKS.build, spec)) is not None]
    threat = config.threat.model()
    attacks = _allowed(attacks, threat, explicit=not isinstance(chosen, str), problems=problems)
    unavailable = {m.name: why for m in metrics if (why := m.unavailable(config.data_root)) is not None}
    # A gate judges pictures one by one; a metric of the whole set has no worst case.
    computed = {m.name: m.more_leak for m in metrics if m.name not in unavailable and not m.of_set}
    if metrics and "leak" not in computed:
        problems.append("metrics must include 'leak': floors, controls and flags are built on it")
    gate = attempt(Gate.parse, config.gate, computed) if config.gate else None
    if config.training.epochs == 0:
        problems += [
            f"{part.kind_name} acts in training only; ask for epochs, or choose a defence of the release"
            for defense in defenses
            for part in members(defense)
            if part.kind_name != "none" and not _acts_without_training(part)
        ]
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
    _require_suited(attacks, architecture, model, splits, names)
    order = torch.randperm(len(splits.heldout), generator=seeds.generator(0, "victims"))
    for defense in defenses:
        attacks = _with_adaptive(attacks, defense, threat)
    return Plan(
        config=config,
        data=data,
        index=index,
        splits=splits,
        data_name=_data_name(config),
        victims=splits.heldout.take(order[: config.victims].sort().values),
        architecture=architecture,
        model_name=label(architecture),
        weights=config.weights,
        weights_digest=file_digest(config.weights) if config.weights else None,
        cuts=names,
        client_compute=compute,
        defenses=defenses,
        attacks=attacks,
        suite=chosen if isinstance(chosen, str) else "custom",
        metrics=[metric for metric in metrics if metric.name not in unavailable],
        unavailable=unavailable,
        threat=threat,
        seeds=config.seeds or ([0] if config.evidence == "E0" else [0, 1, 2]),
        gate=gate,
        data_root=config.data_root,
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
        if name not in present and ATTACKS[name].needs <= threat.access
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


def _require_suited(
    attacks: list[Attack], architecture: Architecture, model: nn.Module, splits: Splits, names: list[str]
) -> None:
    """Refuse attacks that cannot run on this network, before anything is trained."""
    for cut in names:
        split = SplitModel(model, cut, normalize=architecture.normalization())
        for attack in attacks:
            reason = attack.unsuited(split, splits.private.shape)
            if reason is not None:
                raise UsageError(f"{attack.kind_name}: {reason}")


def resolved_config(plan: Plan) -> dict[str, Any]:
    """The configuration as it was run, every default written out."""
    source = {} if plan.config._source is None else {"source": str(plan.config._source)}
    return {
        **source,
        **plan.config.model_dump(mode="json", exclude={"scales"}),
        "cuts": plan.cuts,
        "seeds": plan.seeds,
        "defenses": [describe(defense) for defense in plan.defenses],
        "attacks": [describe(attack) for attack in plan.attacks],
        "metrics": [describe(metric) for metric in plan.metrics],
        "model": describe(plan.architecture),
    }
