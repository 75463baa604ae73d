"""Defences at the cut as points of accuracy and leak, and what they gain over noise alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from statistics import fmean
from typing import Any

from leakscope.auditing.flags import RULES
from leakscope.core.defense import Defense, members
from leakscope.studies.matching import Mean, Point, leak_at, over_seeds

NOISE = "noise alone"
BETTER, WORSE = "beats noise alone", "leaks more than noise alone at its own accuracy"
DOUBTED = "beats noise alone before attacks that did not converge or are otherwise in doubt"
#: Points of accuracy given up, at which defences are compared.
COSTS = (0.03, 0.06, 0.09)
#: A seed's statement about one defence at one strength.
METRICS = ("leak", "mse", "psnr", "ssim", "ssim-padded")


def family(defense: Defense) -> str:
    """What a defence is, whatever its strength and the noise beside it: `cem`, `cem-gated (published)`, …"""
    names = []
    for part in members(defense):
        if part.kind_name in {"none", "gaussian"}:
            continue
        form = getattr(part, "form", None)
        names.append(f"{part.kind_name} (published)" if form == "published" else part.kind_name)
    return " + ".join(names) or NOISE


@dataclass(frozen=True)
class Shot:
    """One target of one seed under its strongest attack."""

    family: str
    defense: str
    seed: int
    accuracy: float
    attack: str
    metrics: Mapping[str, float]  # means over victims, of the strongest attack
    worst_case: float  # leak when every picture meets the attack that suits it best
    worst_picture: float
    notes: Mapping[str, Any]
    doubts: tuple[str, ...] = ()  # flags which say that a stronger attack may exist

    @property
    def point(self) -> Point:
        return Point(self.accuracy, self.metrics["leak"])


def shots(
    targets: Iterable[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], families: Mapping[str, str]
) -> list[Shot]:
    """From the targets and results of an audit; `families` by the label of the defence."""
    found = []
    for target in targets:
        own = [row for row in rows if row["target"] == target["key"]]
        best = max(own, key=lambda row: float(row["metrics"]["leak"]["mean"]))
        means = {name: float(best["metrics"][name]["mean"]) for name in METRICS if name in best["metrics"]}
        # The published convention: the logarithm of the mean error, not the mean of logarithms.
        means["psnr-pooled"] = -10 * log10(max(means["mse"], 1e-10))
        worst = target["worst_case"]["leak"]
        found.append(
            Shot(
                families[target["defense"]], target["defense"], int(target["seed"]), float(target["accuracy"]),
                str(best["attack"]), means, float(worst["mean"]), float(worst["worst"]), target["notes"],
                _doubts(best, own),
            )
        )  # fmt: skip
    return found


def _doubts(best: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What says that the strongest attack could be stronger: flags that block, or a linear one that beats all others.

    A collapsed accuracy says nothing about attacks, and comparisons are made at matched accuracy.
    """
    doubts = {flag for flag in best["flags"] if RULES[flag].severity == "blocks"} - {"accuracy-collapsed"}
    others = [row for row in own if row is not best]
    if others and all("linear-beats-strong" in row["flags"] for row in others):
        doubts.add("linear-beats-strong")
    return tuple(sorted(doubts))


@dataclass(frozen=True)
class Comparison:
    """All shots by seed; every frontier ends where nothing is sent: accuracy of a guess, nothing leaked."""

    shots: Sequence[Shot]
    chance: float

    def by_seed(self) -> dict[int, list[Shot]]:
        seeds: dict[int, list[Shot]] = defaultdict(list)
        for shot in self.shots:
            seeds[shot.seed].append(shot)
        return dict(seeds)

    def noise(self, own: Sequence[Shot]) -> list[Point]:
        return [Point(self.chance, 0.0), *(shot.point for shot in own if shot.family == NOISE)]

    def gain(self, defense: str) -> Mean:
        """Leak of noise alone at this defence's accuracy, minus its own; one value a seed."""
        return over_seeds(
            [
                leak_at(self.noise(own), shot.accuracy) - shot.metrics["leak"]
                for own in self.by_seed().values()
                for shot in own
                if shot.defense == defense
            ]
        )

    def swept(self, name: str, own: Sequence[Shot]) -> list[Point]:
        """A family at all its strengths, beside the undefended target and its noise without a penalty (strength 0)."""
        mine = [shot for shot in own if shot.family == name]
        beside = {shot.defense.partition("+")[0] for shot in mine} | {"none"}
        return [
            Point(self.chance, 0.0),
            *(shot.point for shot in own if shot.defense in beside and shot.family == NOISE),
            *(shot.point for shot in mine),
        ]

    def matched(self, name: str, cost: float) -> tuple[Mean, Mean]:
        """Leak of a family, and of noise alone minus it, where both give up `cost` of the undefended accuracy."""
        leaks, gains = [], []
        for own in self.by_seed().values():
            undefended = next(shot.accuracy for shot in own if shot.defense == "none")
            curve = self.noise(own) if name == NOISE else self.swept(name, own)
            leaks.append(leak_at(curve, undefended - cost))
            gains.append(leak_at(self.noise(own), undefended - cost) - leaks[-1])
        return over_seeds(leaks), over_seeds(gains)

    def against(self, name: str, other: str) -> Mean:
        """Leak of `other` minus that of `name`, in the mean over all costs; one value a seed."""
        differences = []
        for own in self.by_seed().values():
            undefended = next(shot.accuracy for shot in own if shot.defense == "none")
            curves = [self.noise(own) if each == NOISE else self.swept(each, own) for each in (name, other)]
            mine, theirs = ([leak_at(curve, undefended - cost) for cost in COSTS] for curve in curves)
            differences.append(fmean(theirs) - fmean(mine))
        return over_seeds(differences)

    def doubts(self, name: str) -> list[str]:
        """Flags of the strongest attacks on a family: a leak they left low is no merit of the defence."""
        return sorted({flag for shot in self.shots if shot.family == name for flag in shot.doubts})

    def verdict(self, name: str) -> str:
        """Whether a family beats noise alone at matched accuracy."""
        if self.against(name, NOISE).sign > 0:
            return DOUBTED if self.doubts(name) else BETTER
        own = {shot.defense for shot in self.shots if shot.family == name}
        if all(self.gain(defense).sign < 0 for defense in own):
            return WORSE
        return "no better than noise alone, as far as these seeds can tell"
