"""One experiment: one attack on one target. Its keys nest, and none depends on a label.

A target's key is part of its attacks' keys, and an attack's key of its scores'. A new metric therefore
retrains nothing, and a changed learning rate reuses nothing that it should not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.defense import Defense, build_defense
from leakscope.core.metric import Scored
from leakscope.core.spec import LATER, Plain, describe, digest
from leakscope.core.threat import ThreatModel

#: Raised whenever a release is asked something new, so that no verdict rests on a target that was never asked.
PROBES = 4


@dataclass(frozen=True)
class TargetSpec:
    """One trained network, cut at one place: everything that decides its weights and its release."""

    splits: str  # digest of the pictures
    model: Plain  # description of the architecture
    weights: str | None  # digest of weights that were given rather than trained
    cut: str
    defense: Defense
    training: Plain
    seed: int
    pretraining: Plain | None = None  # the first training on public classes, and on which pictures
    stop: int | None = field(default=None, metadata=LATER)  # the epoch whose weights it uses; None: the last
    utility: str | None = field(default=None, metadata=LATER)  # identity of what measures its use, if not accuracy

    @property
    def undefended(self) -> bool:
        return self.defense.kind_name == "none"

    @property
    def trained_key(self) -> str:
        """Identity of the run. An undefended network is trained once for all its cuts, and all for all their stops."""
        plain = replace(self, stop=None).plain()
        if self.undefended:
            del plain["cut"]
        return digest({"trained": plain})

    @property
    def weights_key(self) -> str:
        """Identity of the weights: those at the end of the run, or after one of its epochs."""
        return self.trained_key if self.stop is None else digest({"run": self.trained_key, "stop": self.stop})

    @property
    def epochs(self) -> int:
        """How many epochs it is trained here; 0: its weights are used as they are."""
        return int(self.training["epochs"])

    @property
    def start(self) -> TargetSpec | None:
        """The undefended network that this one begins with; one for all defences of a seed."""
        first = self.training.get("start")
        return None if first is None else replace(self, defense=build_defense("none"), training=first, stop=None)

    @property
    def key(self) -> str:
        return digest({**self.plain(), "probes": PROBES})

    @property
    def setting(self) -> str:
        """What two targets must share to be compared: pictures, given weights and training."""
        apart = ("model", "cut", "defense", "seed", "stop", "utility")
        return digest({name: value for name, value in self.plain().items() if name not in apart})[:8]

    def plain(self) -> Plain:
        description: Plain = describe(self)
        if self.pretraining is None:
            del description["pretraining"]
        return description

    @classmethod
    def from_plain(cls, plain: Plain) -> TargetSpec:
        return cls(**{**plain, "defense": build_defense(plain["defense"])})


@dataclass(frozen=True)
class AttackSpec:
    """One attack on one target under one threat model."""

    target: str  # key of the target, or of the stand-in of a control
    threat: ThreatModel
    attack: Attack
    seed: int
    public: str | None = None  # digest of the attacker's pictures, where they are not those of the target's splits

    @property
    def prepared_key(self) -> str:
        """Identity of what `prepare` learns: it does not depend on the victims."""
        return digest(describe(self))

    def key(self, victims: str) -> str:
        """Identity of the reconstructions of the victims with this digest."""
        return digest({"attack": describe(self), "victims": victims})


def score_key(reconstruction: str, metrics: Iterable[Scored], judged_by: str | None) -> str:
    """Identity of scores; `judged_by` identifies what the metrics read beside the pictures."""
    plain = {"attack": reconstruction, "metrics": [describe(metric) for metric in metrics]}
    return digest(plain if judged_by is None else {**plain, "judge": judged_by})


def control_key(
    attack: Attack, threat: ThreatModel, splits: str, model: Plain, victims: int, judged_by: str | None = None
) -> str:
    """Identity of an attack's positive control: it serves every target and seed of a network on these pictures."""
    of = [splits, model, victims] if judged_by is None else [splits, model, victims, judged_by]
    return digest({"control": describe(attack), "threat": describe(threat), "of": of})


@dataclass(frozen=True)
class Experiment:
    """What one job works on: a target, alone or with an attack on it."""

    target: TargetSpec
    attack: Attack | None = None
    results: tuple[str, ...] = ()  # keys of finished results that it looks at
    rivals: tuple[Attack, ...] = ()  # all attacks of the plan, where the job serves all of them

    def plain(self) -> Plain:
        return {
            "target": self.target.plain(),
            "attack": None if self.attack is None else describe(self.attack),
            "results": list(self.results),
            "rivals": [describe(attack) for attack in self.rivals],
        }

    @classmethod
    def from_plain(cls, plain: Plain) -> Experiment:
        return cls(
            TargetSpec.from_plain(plain["target"]),
            None if plain["attack"] is None else ATTACKS.build(plain["attack"]),
            tuple(plain["results"]),
            tuple(ATTACKS.build(attack) for attack in plain["rivals"]),
        )
