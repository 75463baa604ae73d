"""A made-up world of trained targets and results, with known leaks; typed as everything else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.attack import ATTACKS
from leakscope.core.defense import build_defense
from leakscope.core.results import (
    AttackResult,
    ControlResult,
    Diagnostics,
    Flag,
    Method,
    Spread,
    Summary,
    TargetRecord,
    ThreatRecord,
    Traits,
)
from leakscope.core.words import Control, FlagId
from leakscope.models.mlp import MLP
from leakscope.studies.claims import Sample
from leakscope.studies.picks import Pick

THREAT = ThreatRecord(("features",), True, True, None, "all")


def target(defense: Any, seed: int, accuracy: float = 0.95, key: str = "", label: str = "") -> TargetRecord:
    method = Method.of(build_defense(defense))
    return TargetRecord(
        key=key or f"{defense}-{seed}", trained=None, setting="s", data="d", model=Method.of(MLP()),
        defense=replace(method, label=label) if label else method, cut="relu1", seed=seed,
        undefended=defense == "none", accuracy=accuracy, calibration=None, input_shape=(1, 4, 4),
        classes=("a", "b"), feature_shape=(8,), client_compute=0.1, random_release=False, batch_dependent=False,
        separability=Spread(0.1, 1.0, 2.0), has_use=True, identity={},
    )  # fmt: skip


def result(
    on: TargetRecord, attack: Any, values: Mapping[str, Tensor], flags: Sequence[FlagId] = (), *, passed: bool = True
) -> AttackResult:
    built = ATTACKS.build(attack)
    method = Method.of(built)
    key = f"{on.key}/{method.label}"
    leak = values["leak"]
    summary = Summary(float(leak.mean()), float(leak.std()), 0.0, 1.0, float(leak.max()), len(leak))
    return AttackResult(
        key=key, reconstruction=key, target=on.key, attack=method,
        traits=Traits(built.white_box, built.linear, built.averages_noise), threat=THREAT, goal="pictures",
        seed=on.seed, victims="v", metrics=dict.fromkeys(values, summary),
        directions={name: "low" if name in {"mse", "false-positive"} else "high" for name in values},
        diagnostics=Diagnostics(cpu_seconds=3.6), control="c", mismatched=0.0,
        controls=(ControlResult(Control.POSITIVE, method.label, 1.0 if passed else 0.1, 0.5, passed),),
        flags=tuple(Flag(flag, key, key) for flag in flags),
    )  # fmt: skip


def leaks(level: float, name: str, victims: int = 40) -> Tensor:
    """Leaks of victims around a level, the same victims being easy everywhere."""
    own = 0.05 * torch.randn(victims, generator=seeds.generator(0, "victims"))
    noise = 0.01 * torch.randn(victims, generator=seeds.generator(0, "leaks", name))
    return level + own + noise


@dataclass
class World:
    """Targets by variant and their results; what claims read."""

    targets: list[tuple[str, TargetRecord]] = field(default_factory=list)
    results: dict[str, list[AttackResult]] = field(default_factory=dict)
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def add(
        self,
        defense: Any,
        level: float,
        *,
        variant: str = "split",
        attacks: Sequence[Any] = ("decoder", "ridge"),
        accuracy: float = 0.95,
        flags: Sequence[FlagId] = (),
        passed: bool = True,
        label: str = "",
        count: int = 5,
    ) -> World:
        """A defence on several seeds, whose first attack leaks `level` and the others 0.2 less."""
        for seed in range(count):
            own = target(defense, seed, accuracy + 0.0005 * seed, f"{variant}-{defense}-{seed}", label)
            self.targets.append((variant, own))
            for number, attack in enumerate(attacks):
                values = leaks(level - 0.2 * (number > 0), f"{own.key}{attack}")
                made = result(own, attack, {"leak": values, "psnr": 20 + 10 * values, "mse": 1 - values},
                              flags if number == 0 else (), passed=passed)  # fmt: skip
                self.results.setdefault(own.key, []).append(made)
                self.tensors[made.key] = {"leak": values, "psnr": 20 + 10 * values, "mse": 1 - values}
        return self

    def samples(self, pick: Pick) -> list[Sample]:
        return [Sample(own, tuple(self.results[own.key])) for variant, own in self.targets if pick.fits(variant, own)]

    def values(self, of: AttackResult) -> dict[str, Tensor]:
        return self.tensors[of.key]
