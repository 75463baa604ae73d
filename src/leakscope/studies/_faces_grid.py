"""Attack accuracies of a study of faces: seeds × identities, and differences between targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from leakscope.auditing.flags import collapsed
from leakscope.metrics.recognition import MEASURES
from leakscope.studies._crossed import crossed_interval
from leakscope.studies.study import Figures, Runs

#: The undefended target in the variants that hold the comparison: `main`, and `main-…` with further attacks.
MAIN, UNDEFENDED = "main", "none"

Key = tuple[str, str]  # variant, defence


@dataclass(frozen=True)
class Grid:
    """Every measure of every attack on every target, seeds × identities."""

    tables: dict[Key, dict[str, dict[str, Tensor]]] = field(default_factory=dict)
    accuracy: dict[Key, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Runs) -> Grid:
        """Variants that share a target or an attack have it once; seeds are in order."""
        accuracy: dict[Key, dict[int, float]] = {}
        found: dict[Key, dict[str, dict[int, dict[str, Tensor]]]] = {}
        for variant, run in runs.runs.items():
            name = MAIN if variant.startswith(MAIN) or not variant else variant
            for target in run.targets:
                accuracy.setdefault((name, target["defense"]), {})[int(target["seed"])] = float(target["accuracy"])
            for row in run.rows:
                by_seed = found.setdefault((name, row["defense"]), {}).setdefault(kind_of(row["attack"]), {})
                by_seed[int(row["seed"])] = run.values(row)
        tables = {
            key: {attack: _stacked([by_seed[s] for s in sorted(by_seed)]) for attack, by_seed in attacks.items()}
            for key, attacks in found.items()
        }
        return cls(tables, {key: [by_seed[s] for s in sorted(by_seed)] for key, by_seed in accuracy.items()})

    def difference(self, first: Key, second: Key, attack: str, measure: str = "attack-accuracy") -> Figures:
        """First less second, identity by identity and seed by seed."""
        a, b = self.tables[first][attack][measure], self.tables[second][attack][measure]
        seeds = min(len(a), len(b))
        return crossed_interval(a[:seeds] - b[:seeds])

    def accepted(self, key: Key, attack: str) -> float:
        """Share of its reconstructions that the target itself takes for the class."""
        return self.tables[key][attack]["target-accuracy"].mean().item()

    def collapsed(self, key: Key) -> bool:
        """Whether a target gives less away because it serves less: its accuracy is far below the undefended one's."""
        twin = self.accuracy.get((MAIN, UNDEFENDED))
        identities = next(iter(self.tables[key].values()))["attack-accuracy"].shape[1]
        return collapsed(fmean(self.accuracy[key]), None if twin is None else fmean(twin), identities)

    def strongest(self, *keys: Key) -> str:
        """The attack whose reconstructions are recognised most often on all these targets together.

        Chosen by one of them alone it would be one that was lucky there, and fall back on the others.
        """
        common = [attack for attack in self.tables[keys[0]] if all(attack in self.tables[key] for key in keys)]
        recognised = {a: sum(self.tables[key][a]["attack-accuracy"].mean().item() for key in keys) for a in common}
        return max(common, key=recognised.__getitem__)


def _stacked(seeds: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Every measure that has one value an identity, seeds × identities."""
    names = [name for name in seeds[0] if name in MEASURES and not MEASURES[name].of_set]
    return {name: torch.stack([own[name] for own in seeds]) for name in names}


def kind_of(attack: str) -> str:
    return attack.partition(":")[0]
