"""A configuration becomes a plan: everything is checked before anything is trained."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from leakscope.auditing.suites import suite
from leakscope.auditing.verdict import EXPOSED, Gate
from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, build_defense, members
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.reports import LeftOut
from leakscope.core.results import Direction
from leakscope.core.spec import Plain, describe, label
from leakscope.core.threat import ThreatModel
from leakscope.experiments.config import AuditConfig, shared_pictures
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.gate_reach import out_of_range, unreachable
from leakscope.experiments.goal import GOALS, Goal
from leakscope.experiments.scene import Scene, choose_metrics, threat_of
from leakscope.experiments.usefulness import Usefulness
from leakscope.models.architecture import Architecture
from leakscope.models.resolve import resolve

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What is to be run in a scene: targets, and the attacks that suit each."""

    scene: Scene
    cuts: list[str]
    defenses: list[Defense]
    attacks: list[Attack]  # all that run on any target
    added: list[Attack]  # those among them that the defences asked for, not the user
    suited: Mapping[tuple[str, Defense], list[Attack]]  # those that run on a target
    left_out: list[LeftOut]  # and those that cannot, with the reason
    suite: str
    seeds: list[int]
    gate: Gate | None

    @property
    def config(self) -> AuditConfig:
        return self.scene.config

    @property
    def targets(self) -> list[TargetSpec]:
        """Every target: seed by seed, cut by cut, defence by defence, stop by stop."""
        return [
            self.scene.spec(cut, defense, seed, stop)
            for seed in self.seeds for cut in self.cuts for defense in self.defenses for stop in self.config.stops
        ]  # fmt: skip

    def attacks_on(self, target: TargetSpec) -> list[Attack]:
        return self.suited[target.cut, target.defense]

    @property
    def explicit_twin(self) -> bool:
        """Whether `none` was named beside defences of ours: it is then what they are compared with."""
        return len(self.defenses) > 1

    @property
    def results(self) -> int:
        return sum(len(self.attacks_on(target)) for target in self.targets)

    def resolved_config(self) -> Plain:
        """The configuration as it was run, every default written out."""
        source = {} if self.config._source is None else {"source": str(self.config._source)}
        unused = ("data", "splits") if self.config.own_parts else ()  # folders took their place
        return {
            **source,
            **self.config.model_dump(mode="json", exclude={"scales", "variants", *unused}),
            "cuts": self.cuts,
            "seeds": self.seeds,
            "defenses": [describe(defense) for defense in self.defenses],
            "attacks": [describe(attack) for attack in self.attacks],
            "metrics": [describe(metric) for metric in self.scene.metrics],
            "model": describe(self.scene.architecture),
        }


def make_plans(configs: Mapping[str, AuditConfig]) -> dict[str, Plan]:
    """The plan of every variant, all checked before any runs; pictures that several share are read once."""
    read: dict[str, ImageSet] = {}
    plans = {}
    for name, config in configs.items():
        try:
            plans[name] = make_plan(config, data=shared_pictures(config, read))
        except UsageError as error:
            raise UsageError(f"variant {name}: {error}" if name else str(error)) from None
    return plans


@dataclass
class _Asked:
    """What a configuration names, built; every problem is gathered, so that one message tells them all."""

    config: AuditConfig
    problems: list[str] = field(default_factory=list)
    dropped: list[LeftOut] = field(default_factory=list)  # attacks that the threat model does not allow

    def attempt(self, make: Callable[..., T], *args: Any) -> T | None:
        try:
            return make(*args)
        except UsageError as error:
            self.problems.append(str(error))
            return None

    def all_of(self, make: Callable[[Any], T], specs: Sequence[Any]) -> list[T]:
        return [built for spec in specs if (built := self.attempt(make, spec)) is not None]

    @property
    def chosen(self) -> str | list[Any]:
        return self.config.attacks or ("quick" if self.config.evidence == "E0" else "full")

    def attacks(self, threat: ThreatModel) -> list[Attack]:
        """The attacks that the threat model lets happen; one the user asked for by name must be among them."""
        explicit = not isinstance(self.chosen, str)
        goal = (self.attempt(GOALS.build, self.config.goal or "pictures") or GOALS.build("pictures")).attacks_for
        specs = (self.attempt(suite, self.chosen, goal) or []) if isinstance(self.chosen, str) else self.chosen
        kept = []
        wanted = self.all_of(ATTACKS.build, specs)
        for attack in wanted:
            try:
                threat.require(attack.needs, attack.kind_name)
                spared = None if explicit else attack.unneeded(threat)
                if spared is None:
                    kept.append(attack)
                else:
                    self.dropped.append(LeftOut(label(attack), "any", "any", spared))
            except UsageError as error:
                self.dropped.append(LeftOut(label(attack), "any", "any", str(error)))
                if explicit:
                    self.problems.append(str(error))
        if wanted and not kept and not explicit:
            self.problems.append(
                "the threat model allows no attack of the suite; grant features and query, or name attacks"
            )
        return kept

    def goal(self, attacks: Sequence[Attack]) -> Goal:
        named = None if self.config.goal is None else self.attempt(GOALS.build, self.config.goal)
        served = {attack.goal for attack in attacks} | ({named.attacks_for} if named else set())
        if len(served) > 1:
            self.problems.append(
                f"the attacks serve different goals ({', '.join(sorted(served))}), which answer different questions; "
                "audit them one by one"
            )
        return named or GOALS.build(next(iter(sorted(served)), "pictures"))

    def gate(self, goal: Goal) -> Gate | None:
        metrics, _ = choose_metrics(self.config, goal)
        # A gate judges victims one by one; a metric of the whole set has no worst case.
        computed: dict[str, Direction] = {m.name: m.more_leak for m in metrics if not m.of_set}
        computed[EXPOSED] = "high"
        if "leak" not in computed:
            self.problems.append("metrics must include 'leak': floors, controls and flags are built on it")
        return self.attempt(Gate.parse, self.config.gate, computed) if self.config.gate is not None else None

    def check_defenses(self, defenses: Sequence[Defense], architecture: Architecture) -> None:
        config, carried = self.config, architecture.defense
        if architecture.grants is not None and (config.training.epochs or config.pretraining):
            self.problems.append("a model behind an interface cannot be trained; leave --epochs and pretraining out")
        parts = list(dict.fromkeys(part for defense in defenses for part in members(defense)))
        if config.training.epochs == 0:
            self.problems += [
                f"{part.kind_name} acts in training only; ask for epochs, or choose a defence of the release"
                for defense in defenses
                for part in members(defense)
                if part.kind_name != "none" and not _acts_without_training(part) and describe(defense) != carried
            ]
        if not (config.pretraining or config.weights or architecture.trained):
            self.problems += [
                f"{part.kind_name} keeps layers as they were before private training, and nothing was learned by "
                "then; set pretraining, such as {training: {epochs: 10}}, or give weights"
                for part in parts
                if part.keeps_first_weights
            ][:1]
        if config.training.start is not None:
            self.problems += [
                f"{part.kind_name} protects only what it was trained with from the first step, and training.start "
                "trains on the private pictures before it acts; leave start out"
                for part in parts
                if part.keeps_first_weights or part.from_scratch
            ]
        unknown = [stop for stop in config.stops if stop is not None and stop not in config.training.keep]
        if unknown or len(set(config.stops)) < len(config.stops):
            self.problems.append(f"stops names epochs of training.keep ({list(config.training.keep)}), each once")
        if config.weights is not None and not config.weights.exists():
            self.problems.append(f"no weights at {config.weights}; give a safetensors file")


def make_plan(
    config: AuditConfig,
    *,
    data: ImageSet | None = None,
    architecture: Architecture | None = None,
    utility: Usefulness | None = None,
) -> Plan:
    """Check every part of a configuration and build what it names; all problems come in one message."""
    asked = _Asked(config)
    architecture = architecture or asked.attempt(resolve, config.model)
    # A network that comes with a defence is audited with it unless told otherwise.
    carried = None if architecture is None else architecture.defense
    wanted = config.defenses if carried is None or "defenses" in config.model_fields_set else [carried]
    defenses = asked.all_of(build_defense, wanted)
    threat = config.threat.model()
    if architecture is not None:
        threat = asked.attempt(threat_of, config, architecture) or threat
    attacks = asked.attacks(threat)
    goal = asked.goal(attacks)
    gate = asked.attempt(asked.gate, goal)
    if architecture is not None:
        asked.check_defenses(defenses, architecture)
    if asked.problems:
        raise UsageError("; ".join(asked.problems))
    scene = Scene.load(config, goal, data=data, architecture=architecture, utility=utility)
    cuts = _checked_cuts(scene)
    if config.weights is not None:
        for defense in defenses:  # weights that fit none of them are better refused now
            scene.build(scene.spec(cuts[0], defense, config.first_seed))
    explicit = not isinstance(asked.chosen, str)
    added = _adaptive(attacks, defenses, threat)
    suited, left_out = _suited(scene, attacks + added, defenses, cuts, required=attacks if explicit else ())
    goal.require(attacks, config, scene.splits)
    plan = Plan(
        scene=scene,
        cuts=cuts,
        defenses=defenses,
        attacks=list(dict.fromkeys(attack for own in suited.values() for attack in own)),
        added=added,
        suited=suited,
        left_out=asked.dropped + left_out,
        suite=asked.chosen if isinstance(asked.chosen, str) else "custom",
        seeds=config.chosen_seeds,
        gate=gate,
    )
    hopeless = gate and (out_of_range(gate, scene) or unreachable(plan))
    if hopeless:
        raise UsageError(hopeless)
    return plan


def _acts_without_training(defense: Defense) -> bool:
    """Whether a defence changes what leaves the client even when nothing is trained."""
    if type(defense).finish is not Defense.finish:
        return False  # what it releases is measured when training is over
    return any(getattr(type(defense), hook) is not getattr(Defense, hook) for hook in ("release", "rebuild"))


def _adaptive(attacks: Sequence[Attack], defenses: Sequence[Defense], threat: ThreatModel) -> list[Attack]:
    """The attacks made against these defences that are not asked for already.

    Every target of the plan meets them, the undefended twin too: figures of different attacks cannot be compared.
    """
    present = {attack.kind_name for attack in attacks}
    if any(type(attack).prepare is not Attack.prepare and not attack.linear for attack in attacks):
        present.add("auto")  # an attack that trains on what is released was asked for
    goals = {attack.goal for attack in attacks}
    extra = [
        ATTACKS.build(name)
        for defense in defenses
        for part in members(defense)
        for name in part.adaptive
        if name not in present and ATTACKS[name].needs <= threat.reach and ATTACKS[name].goal in goals
    ]
    return list(dict.fromkeys(extra)) if threat.knows_defense else []


def _checked_cuts(scene: Scene) -> list[str]:
    """The cuts to audit; refuses layers that do not separate the network."""
    found = scene.cuts
    wanted = scene.config.cuts or [cut for cut in scene.architecture.default_cuts if cut in found]
    if not wanted and found:
        # No cut asked for and none proposed: after a fifth of the network's compute.
        wanted = [min(found.values(), key=lambda cut: abs(cut.compute - 0.2)).name]
    if not wanted:
        raise UsageError(
            f"{scene.network_name} has no layer where it can be cut in two; give its parts layers of their "
            "own, or audit its answers alone: leakscope.audit(a function from pictures to scores, …)"
        )
    for cut in wanted:
        if cut not in found:
            near = difflib.get_close_matches(cut, found, n=3, cutoff=0.4) or list(found)[:8]
            names = {name for name, _ in scene.network().named_modules()}
            reason = "does not separate the network" if cut in names else "is no layer"
            raise UsageError(f"{scene.network_name}: {cut!r} {reason}; cuts: {', '.join(near)} (see `leakscope cuts`)")
    return list(wanted)


def _suited(
    scene: Scene, attacks: list[Attack], defenses: list[Defense], cuts: list[str], *, required: Sequence[Attack]
) -> tuple[dict[tuple[str, Defense], list[Attack]], list[LeftOut]]:
    """The attacks of every target; attacks that cannot run there are left out.

    An attack that is `required`, since the user asked for it by name, must be able to run on one target at least.
    """
    suited: dict[tuple[str, Defense], list[Attack]] = {}
    left_out: list[LeftOut] = []
    with seeds.ambient(0, "plan"):
        model = scene.network().eval()
    for cut in cuts:
        plain = SplitModel(model, cut, normalize=scene.architecture.normalization())
        for defense in defenses:
            with seeds.ambient(0, "plan", "rebuild"):
                split = _rebuilt(plain, defense, scene.splits.public.images[:2])
            shape = scene.splits.private.shape
            reasons = {
                attack: attack.unsuited(split, shape)
                or (None if attack in required else attack.redundant(split, shape))
                for attack in attacks
            }
            suited[cut, defense] = [attack for attack, reason in reasons.items() if reason is None]
            left_out += [
                LeftOut(label(attack), label(defense), cut, reason)
                for attack, reason in reasons.items()
                if reason is not None
            ]
    running = {attack for own in suited.values() for attack in own}
    for attack in required:
        if attack not in running:
            reason = next(entry.reason for entry in left_out if entry.attack == label(attack))
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
