"""What MixCon's audits measured, by seed and setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from leakscope.core.defense import Defense
from leakscope.core.spec import label
from leakscope.defenses.mixcon import MixCon
from leakscope.pipeline.execute import target_plan
from leakscope.studies.matching import Mean, over_seeds
from leakscope.studies.study import Run


def setting(defense: Defense) -> str:
    """`vanilla`, `UniCon`, `MixCon (λ, β)`, with `, raw` where features were not normalised."""
    if isinstance(defense, MixCon):
        return f"MixCon ({defense.weight:g}, {defense.beta:g}){'' if defense.unit_norm else ', raw'}"
    return {"none": "vanilla", "unicon": "UniCon"}.get(defense.kind_name, label(defense))


@dataclass(frozen=True)
class Seen:
    """One target of one seed: how well it does, how far apart its features are, and every attack's means."""

    setting: str
    seed: int
    train: float
    test: float
    distances: dict[str, float]  # min, mean, max ‖z_i − z_j‖
    attacks: dict[str, dict[str, dict[str, float]]]  # attack → metric → summary

    def published(self, metric: str) -> float:
        """Under the published attack, search."""
        return float(self.attacks["search"][metric]["mean"])

    def strongest(self, metric: str) -> float:
        best = max(self.attacks.values(), key=lambda metrics: metrics["leak"]["mean"])
        return float(best[metric]["mean"])


def seen(run: Run, suffix: str = "") -> list[Seen]:
    found = []
    by_label = {label(defense): defense for defense in run.plan.defenses}
    for target in run.targets:
        defense, seed = by_label[target["defense"]], int(target["seed"])
        trained = run.store.get("trained", target_plan(run.plan, target["cut"], defense, seed).trained_key)
        assert trained is not None
        attacks: dict[str, dict[str, Any]] = {
            row["attack"].partition(":")[0]: row["metrics"] for row in run.rows if row["target"] == target["key"]
        }
        found.append(
            Seen(
                setting(defense) + suffix, seed, float(trained.record["history"]["accuracy"][-1]),
                float(target["accuracy"]), dict(target["separability"]), attacks,
            )
        )  # fmt: skip
    return found


def by_setting(all_seen: Iterable[Seen]) -> dict[str, list[Seen]]:
    groups: dict[str, list[Seen]] = defaultdict(list)
    for item in all_seen:
        groups[item.setting].append(item)
    return dict(groups)


def mean_of(group: Sequence[Seen], value: Callable[[Seen], float]) -> Mean:
    return over_seeds([value(item) for item in group])


def mean_distances(group: Sequence[Seen]) -> dict[str, float]:
    return {end: fmean(item.distances[end] for item in group) for end in ("min", "mean", "max")}


def paired(group: Sequence[Seen], other: Sequence[Seen], value: Callable[[Seen], float]) -> Mean:
    """`group` minus `other`, seed by seed."""
    theirs = {item.seed: value(item) for item in other}
    return over_seeds([value(item) - theirs[item.seed] for item in group if item.seed in theirs])


@dataclass(frozen=True)
class Cell:
    """One (λ, β) of the grid."""

    weight: float
    beta: float
    accuracy: float
    distance: float  # mean over pairs of pictures


def sweet_spot(cells: Sequence[Cell], vanilla: float, tolerance: float = 0.01) -> Cell | None:
    """The cell with the closest features among those whose accuracy is within `tolerance` of vanilla's."""
    useful = [cell for cell in cells if cell.accuracy >= vanilla - tolerance]
    return min(useful, key=lambda cell: cell.distance) if useful else None
