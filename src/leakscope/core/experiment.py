"""What an experiment is, and the keys under which its stages are kept.

Keys nest: a target's key is part of its attacks' keys, and an attack's key of its results'. A new
metric therefore retrains nothing, and a changed learning rate reuses nothing it should not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leakscope.core.attack import Attack
from leakscope.core.defense import Defense
from leakscope.core.spec import Plain, describe, digest
from leakscope.core.threat import ThreatModel


@dataclass(frozen=True)
class TargetPlan:
    """One trained network, cut at one place."""

    splits: str  # digest of the pictures
    model: Plain  # description of the architecture
    weights: str | None  # digest of weights that were given rather than trained
    cut: str
    defense: Defense
    training: Plain
    seed: int
    pretraining: Plain | None = None  # the first training on public classes, and on which pictures

    @property
    def trained_key(self) -> str:
        """Identity of the weights. An undefended network is trained once for all its cuts."""
        plain = self.plain()
        if self.defense.kind_name == "none":
            del plain["cut"]
        return digest(plain)

    @property
    def key(self) -> str:
        return digest(self.plain())

    def plain(self) -> Plain:
        description: Plain = describe(self)
        if self.pretraining is None:
            del description["pretraining"]
        return description


@dataclass(frozen=True)
class AttackPlan:
    """One attack on one target under one threat model."""

    target: str  # key of the target, or of the control that stands in for it
    threat: ThreatModel
    attack: Attack
    seed: int

    @property
    def prepared_key(self) -> str:
        """Identity of what `prepare` learns: it does not depend on the victims."""
        return digest(describe(self))

    def key(self, victims: str) -> str:
        """Identity of the reconstructions of the victims with this digest."""
        return digest({"attack": describe(self), "victims": victims})


def result_key(attack_key: str, metrics: list[Any]) -> str:
    """Identity of scores."""
    return digest({"attack": attack_key, "metrics": [describe(metric) for metric in metrics]})
