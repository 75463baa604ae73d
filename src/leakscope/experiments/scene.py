"""What all experiments of one configuration share, loaded: pictures, network, threat and goal."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

from torch import nn

from leakscope.core import seeds
from leakscope.core.data import DATASETS, UNLABELLED, ImageSet, Splits
from leakscope.core.defense import Defense
from leakscope.core.errors import UsageError
from leakscope.core.metric import METRICS, Scored
from leakscope.core.model import Cut, SplitModel, cuts
from leakscope.core.results import Method, ThreatRecord
from leakscope.core.spec import Plain, describe, label
from leakscope.core.threat import Access, ThreatModel
from leakscope.data.images import checked
from leakscope.data.split_index import read_index
from leakscope.data.splits import SplitIndex
from leakscope.experiments.building import build_split
from leakscope.experiments.config import AuditConfig, load_data, load_parts
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.goal import GOALS, Goal
from leakscope.experiments.usefulness import Usefulness
from leakscope.models._exported import ExportedArchitecture
from leakscope.models.architecture import Architecture
from leakscope.models.resolve import instantiate, normalized, resolve
from leakscope.models.weights import file_digest

#: Settings that do not change a result, or that the command names for themselves.
_APART = {
    "scales", "variants", "study", "results", "gate", "evidence", "cuts", "defenses", "attacks", "seeds",
    "goal", "stops",
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """Loaded once for each process that works on a configuration; nothing in it is trained."""

    config: AuditConfig
    data: ImageSet
    index: SplitIndex | None  # None: the splits were read from a file
    splits: Splits
    architecture: Architecture
    goal: Goal
    metrics: tuple[Scored, ...]
    unavailable: dict[str, str]  # metrics that cannot be computed here, and why
    threat: ThreatModel
    weights: str | None  # digest of given weights
    utility: Usefulness | None = None  # what networks are good for, where it is not accuracy

    @classmethod
    def load(
        cls,
        config: AuditConfig,
        goal: Goal | None = None,
        *,
        data: ImageSet | None = None,
        architecture: Architecture | None = None,
        utility: Usefulness | None = None,
    ) -> Scene:
        goal = goal or GOALS.build(config.goal or "pictures")
        data, index, splits = _divided(config, data)
        splits = goal.divided(splits)
        if goal.labelled and data.classes == UNLABELLED:
            raise UsageError(
                "these pictures have no labels: put them into one folder per class, or measure against the mean "
                "picture with --set goal=unlabelled"
            )
        if goal.labelled and (config.utility or utility):
            raise UsageError("utility takes the place of accuracy where there are no labels; set goal=unlabelled")
        if config.utility is not None:
            utility = Usefulness.of(config.utility)
        if not len(splits.private) and goal.kind_name == "identities":
            raise UsageError("identities are rebuilt of those the network was trained on; give them with --private")
        metrics, unavailable = choose_metrics(config, goal, pixels=data.pixels)
        architecture = normalized(architecture or resolve(config.model), config.normalize)
        return cls(
            config=config, data=data, index=index, splits=splits, architecture=architecture,
            goal=goal, metrics=metrics, unavailable=unavailable,
            threat=threat_of(config, architecture), weights=file_digest(config.weights) if config.weights else None,
            utility=utility,
        )  # fmt: skip

    @property
    def trained_on(self) -> str:
        """What is known about the pictures that the network learned from: `private`, `unknown`, or `nothing`."""
        config, architecture = self.config, self.architecture
        if config.training.epochs or config.private is not None:
            return "private"
        if isinstance(architecture, ExportedArchitecture) and architecture.exported.pictures == self.splits_digest:
            return "private"
        return "unknown" if config.weights is not None or architecture.trained else "nothing"

    def victims(self, seed: int) -> ImageSet:
        """Whom to attack when the target has this seed."""
        if seed not in self._victims:
            wanted = self.config.chosen_victims
            self._victims[seed] = self.goal.victims(self.splits, wanted.count, seed, wanted.source)
        return self._victims[seed]

    @cached_property
    def _victims(self) -> dict[int, ImageSet]:
        return {}

    @property
    def first_victims(self) -> ImageSet:
        return self.victims(self.config.first_seed)

    @cached_property
    def public(self) -> ImageSet:
        """The attacker's pictures, as the threat model has them."""
        return self.splits.attackers(self.threat.public)

    @cached_property
    def splits_digest(self) -> str:
        return self.splits.digest()

    @cached_property
    def data_name(self) -> str:
        """How tables call the data."""
        try:
            name = self.short_data_name if self.config.own_parts else label(DATASETS.build(self.config.data))
        except UsageError:  # pictures handed over in Python have no name to ask for
            name = self.short_data_name
        return name if self.config.resize is None else f"{name}, {self.config.resize} px"

    @property
    def network_name(self) -> str:
        """How people call the network: never `file:path=…`."""
        return Method.of(self.architecture).plain

    @property
    def short_data_name(self) -> str:
        parts = self.config.own_parts.values()
        if parts:
            # By folder and parent: where on whose disk they lie is nobody else's business.
            return " + ".join(_short(spec) if isinstance(spec, str) else label(DATASETS.build(spec)) for spec in parts)
        return self.config.data if isinstance(self.config.data, str) else str(self.config.data.get("kind"))

    @cached_property
    def command(self) -> str | None:
        """What repeats a result, but for cut, defence, attack and seed; None for what was handed over in Python."""
        config = self.config
        if "given" in (config.data, config.model):
            return None
        changed = config.model_dump(mode="json", exclude_defaults=True, exclude=_APART)
        words = ["leakscope", "attack"]
        for name, value in changed.items():
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        return shlex.join(words)

    def spec(self, cut: str, defense: Defense, seed: int, stop: int | None = None) -> TargetSpec:
        return TargetSpec(
            splits=self.splits_digest,
            model=describe(self.architecture),
            weights=self.weights,
            cut=cut,
            defense=defense,
            training=describe(self.config.training),
            seed=seed,
            pretraining=self._first_training,
            stop=stop,
            utility=None if self.utility is None else self.utility.identity,
        )

    @property
    def _first_training(self) -> Plain | None:
        """What identifies the weights a target begins with."""
        first = self.config.pretraining
        return None if first is None else {**describe(first), "pictures": self.splits.public.digest()}

    def network(self) -> nn.Module:
        """The network, whole and undefended, before any weights that were given: for looking at its layers."""
        private = self.splits.private
        return instantiate(self.architecture, private.shape, self.outputs, private.classes)

    @property
    def outputs(self) -> int:
        """Classes that a network is built for; 0: it has outputs of its own, whatever they are."""
        return len(self.splits.private.classes) if self.goal.labelled else 0

    def build(self, spec: TargetSpec) -> SplitModel:
        """The untrained network with its defence and the weights it was given."""
        return build_split(
            self.architecture, spec.cut, spec.defense, example=self.splits.public.images[:2],
            classes=self.outputs, seed=spec.seed, weights=self.config.weights,
        )  # fmt: skip

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        """Every place where the network can be cut, in the order of computation."""
        with seeds.ambient(0, "plan"):
            model = self.network().eval()
        found = cuts(model, self.splits.public.images[:2], self.architecture.normalization())
        return {cut.name: cut for cut in found}


def _short(path: str) -> str:
    return "/".join(PurePath(path).parts[-2:])


def threat_of(config: AuditConfig, architecture: Architecture) -> ThreatModel:
    """What the attacker is handed: what was asked for, as far as the network has it to give.

    A service has no weights to hand over. Access that was named is refused there; the usual one gives way.
    """
    threat, most = config.threat.model(), architecture.grants
    if most is None:
        return threat
    if "access" not in config.threat.model_fields_set:
        return replace(threat, access=threat.access & {Access(name) for name in most})
    missing = sorted(threat.access - most)
    if missing:
        raise UsageError(
            f"a model behind an interface has no {', '.join(missing)} to hand over; threat.access may name "
            f"{', '.join(sorted(most))}"
        )
    return threat


def _divided(config: AuditConfig, data: ImageSet | None) -> tuple[ImageSet, SplitIndex | None, Splits]:
    """All pictures and whose they are: as folders say, as a file says, or drawn."""
    found = load_parts(config, config.data_root) if data is None else None
    if found is not None:
        data, index = checked(found[0]), found[1]
        return data, index, index.splits(data)
    data = checked(data) if data is not None else load_data(config, config.data_root)
    if config.split_index is not None:
        return data, None, read_index(data, config.split_index)
    index = config.splits.index(data, seed=0)
    return data, index, index.splits(data)


def choose_metrics(
    config: AuditConfig, goal: Goal, *, pixels: bool = True
) -> tuple[tuple[Scored, ...], dict[str, str]]:
    """The metrics to compute, and those asked for that cannot be, with the reason."""
    judges = config.evaluator.judges
    reads = {"evaluator"} | ({"embedding"} if "embedder" in judges else set()) | ({"second"} if judges[1:] else set())
    asked = goal.metrics([METRICS.build(spec) for spec in config.metrics])
    asked = [metric for metric in asked if getattr(metric, "reads", "evaluator") in reads]
    unavailable = {m.name: why for m in asked if (why := m.unavailable(config.data_root)) is not None}
    if not pixels:
        unavailable |= {metric.name: "measures pictures only" for metric in asked if not metric.of_points}
    return tuple(metric for metric in asked if metric.name not in unavailable), unavailable


def threat_record(threat: ThreatModel) -> ThreatRecord:
    """What the attacker is handed, with a short name: `all`, or what is granted and what is not."""
    usual = ThreatModel()
    parts = ["all" if threat.access == usual.access else "+".join(sorted(threat.access)) or "nothing"]
    if not threat.public_data:
        parts.append("no public data")
    if not threat.knows_defense:
        parts.append("defence unknown")
    if threat.queries is not None:
        parts.append(f"{threat.queries} queries")
    if threat.public != "own":
        parts.append("has the training pictures" + (" and its own" if threat.public == "both" else ""))
    if threat.shared_classes:
        parts.append("has pictures of the attacked classes")
    return ThreatRecord(
        tuple(sorted(threat.access)), threat.public_data, threat.knows_defense, threat.queries, ", ".join(parts),
        threat.public, threat.shared_classes,
    )  # fmt: skip
