"""MixCon's experiments beside its tables."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean

from matplotlib.figure import Figure

from leakscope.core.spec import label
from leakscope.defenses.mixcon import MixCon
from leakscope.studies._mixcon_figures import Cell, Seen, by_setting, mean_distances, mean_of, paired, seen, sweet_spot
from leakscope.studies._mixcon_page import page
from leakscope.studies.matching import Mean
from leakscope.studies.study import STUDIES, Claim, Figures, Outcome, Run, Runs, Study, published

_OUTCOMES: dict[int, Outcome] = {1: "holds", -1: "does not hold", 0: "cannot tell"}
VANILLA, MIXED, COLLAPSED = "vanilla", "MixCon (0.1, 0.01)", "MixCon (0.1, 0)"
GENTLE = "MixCon (1, 0.01), raw, gentle"
#: Settings whose accuracy is held against a published one.
_ACCURACIES = {
    VANILLA: VANILLA,
    MIXED: MIXED,
    COLLAPSED: COLLAPSED,
    f"{COLLAPSED}, raw": COLLAPSED,
    "MixCon (1, 0), raw": COLLAPSED,
    GENTLE: MIXED,
    "MixCon (1, 0), raw, gentle": COLLAPSED,
}
#: Points of accuracy within which a published figure counts as reproduced.
CLOSE = 0.03


@STUDIES.register("mixcon")
@dataclass(frozen=True)
class MixConStudy(Study):
    """Separability at the cut: the synthetic experiment, pictures, and the grid of (λ, β) with its sweet spot.

    Part `synthetic` has a variant for each seed, named by its number, and `deeper`, `wider`, `published-init`;
    any other part the variants `table` and `grid`. `note` is printed with the figures: how open settings were chosen.
    """

    part: str = "synthetic"
    note: str = ""

    def measure(self, runs: Runs) -> Figures:
        figures = _synthetic(runs) if self.part == "synthetic" else _pictures(self.part, runs)
        return figures | {"note": self.note}

    def page(self, parts: Mapping[str, Figures]) -> str:
        return page(parts)

    def pictures(self, runs: Runs) -> dict[str, bytes]:
        return {} if "grid" not in runs.runs else {"grid.png": _grid_plot(*_grid(runs["grid"]))}


def _synthetic(runs: Runs) -> Figures:
    all_seen = [item for name, run in runs.runs.items() if name.isdigit() for item in seen(run)]
    for name in ("deeper", "wider", "gentle"):
        if name in runs.runs:
            all_seen += seen(runs[name], f", {name}")
    groups = by_setting(all_seen)
    init = seen(runs["published-init"]) if "published-init" in runs.runs else []
    return {
        "published": published("mixcon")["synthetic"],
        "settings": {name: _point_row(group) for name, group in groups.items()},
        "paired": {name: _paired_row(group, groups[twin]) for name, group in groups.items() if (twin := _twin(name))},
        "published_init": [item.test for item in init],
        "claims": [claim.as_dict() for claim in _synthetic_claims(groups)],
    }


def _twin(name: str) -> str | None:
    """The undefended setting that saw the same points; other networks have none."""
    if name.startswith(VANILLA) or name.endswith(("deeper", "wider")):
        return None
    return f"{VANILLA}, gentle" if name.endswith("gentle") else VANILLA


def _point_row(group: Sequence[Seen]) -> Figures:
    return {
        "train": mean_of(group, lambda item: item.train).as_dict(),
        "test": mean_of(group, lambda item: item.test).as_dict(),
        "mse": mean_of(group, lambda item: item.published("mse")).as_dict(),
        "mcs": mean_of(group, lambda item: item.published("cosine")).as_dict(),
        "strongest_mse": mean_of(group, lambda item: item.strongest("mse")).as_dict(),
        "distances": mean_distances(group),
        "seeds": {str(item.seed): item.test for item in group},
    }


def _paired_row(group: Sequence[Seen], vanilla: Sequence[Seen]) -> Figures:
    return {
        "mse": paired(group, vanilla, lambda item: item.published("mse")).as_dict(),
        "mcs": paired(group, vanilla, lambda item: item.published("cosine")).as_dict(),
        "strongest_mse": paired(group, vanilla, lambda item: item.strongest("mse")).as_dict(),
    }


def _synthetic_claims(groups: Mapping[str, Sequence[Seen]]) -> list[Claim]:
    paper = published("mixcon")["synthetic"]
    claims = []
    for name, as_published in _ACCURACIES.items():
        if name in groups:
            said = paper[as_published]["test"]
            claims.append(_close(f"{name}: {100 * said:.1f} % of test points right", groups[name], said))
    for name in (MIXED, GENTLE):
        if name not in groups:
            continue
        for attack, value in (("the published search", Seen.published), ("the strongest attack", Seen.strongest)):
            gap = paired(groups[name], groups[_twin(name) or VANILLA], partial(value, metric="mse"))
            text = f"{name} is harder to invert than vanilla: higher MSE (here by {attack})"
            claims.append(Claim(text, _OUTCOMES[gap.sign], f"MSE differs by {_span(gap)}"))
    return claims


def _close(text: str, group: Sequence[Seen], said: float) -> Claim:
    found = mean_of(group, lambda item: item.test)
    each = ", ".join(f"{100 * item.test:.1f}" for item in group)
    outcome: Outcome = "holds" if abs(found.mean - said) <= CLOSE else "does not hold"
    return Claim(text, outcome, f"{100 * found.mean:.1f} % here ({each})")


def _span(gap: Mean) -> str:
    return f"{gap.mean:+.3f}" + ("" if gap.low is None else f" [{gap.low:+.3f}, {gap.high:+.3f}] over {gap.n} seeds")


def _pictures(part: str, runs: Runs) -> Figures:
    run = runs["table"]
    groups = by_setting(seen(run))
    figures: Figures = {
        "published": published("mixcon").get(part, {}),
        "settings": {name: _picture_row(group, run) for name, group in groups.items()},
        "claims": [claim.as_dict() for claim in _picture_claims(groups)],
        "grid": None,
    }
    if "grid" in runs.runs:
        cells, vanilla = _grid(runs["grid"])
        best = sweet_spot(cells, vanilla.accuracy)
        figures["grid"] = {
            "vanilla": {"accuracy": vanilla.accuracy, "distance": vanilla.distance},
            "cells": [asdict(cell) for cell in cells],
            "sweet_spot": None if best is None else asdict(best),
        }
    return figures


def _picture_row(group: Sequence[Seen], run: Run) -> Figures:
    return {
        "accuracy": mean_of(group, lambda item: item.test).as_dict(),
        "distances": mean_distances(group),
        "attacks": {attack: _spreads([item.attacks[attack] for item in group]) for attack in group[0].attacks},
        "victims": len(run.plan.victims),
    }


def _spreads(seeds: Sequence[Mapping[str, Mapping[str, float]]]) -> Figures:
    """Mean and standard deviation over pictures, averaged over seeds, and the worst case of all."""
    return {
        metric: {
            "mean": fmean(own[metric]["mean"] for own in seeds),
            "std": fmean(own[metric]["std"] for own in seeds),
            "worst": max(own[metric]["worst"] for own in seeds),
        }
        for metric in seeds[0]
        if metric in {"leak", "ssim"} or metric.startswith("psim")
    }


def _picture_claims(groups: Mapping[str, Sequence[Seen]]) -> list[Claim]:
    claims = []
    for name, group in groups.items():
        if name == VANILLA:
            continue
        for attack, value in (("published search", Seen.published), ("strongest attack", Seen.strongest)):
            # SSIM is what the paper reports.
            gap = paired(groups[VANILLA], group, partial(value, metric="ssim"))
            text = f"{name} gives away less than vanilla: lower SSIM, by the {attack}"
            claims.append(Claim(text, _OUTCOMES[gap.sign], f"SSIM is lower by {_span(gap)}"))
    return claims


def _grid(run: Run) -> tuple[list[Cell], Cell]:
    by_label = {label(defense): defense for defense in run.plan.defenses}
    cells, vanilla = [], Cell(0, 0, 0, 0)
    for target in run.targets:
        defense = by_label[target["defense"]]
        figures = float(target["accuracy"]), float(target["separability"]["mean"])
        if isinstance(defense, MixCon):
            cells.append(Cell(defense.weight, defense.beta, *figures))
        else:
            vanilla = Cell(0, 0, *figures)
    return cells, vanilla


def _grid_plot(cells: Sequence[Cell], vanilla: Cell) -> bytes:
    """Accuracy and mean distance over (λ, β), the sweet spot marked."""
    weights, betas = sorted({cell.weight for cell in cells}), sorted({cell.beta for cell in cells})
    best = sweet_spot(cells, vanilla.accuracy)
    figure = Figure(figsize=(8, 3.2), dpi=100, layout="constrained")
    for place, (name, of_vanilla) in enumerate(
        (("accuracy", vanilla.accuracy), ("distance", vanilla.distance)), start=1
    ):
        axes = figure.add_subplot(1, 2, place)
        values = [[float("nan")] * len(weights) for _ in betas]
        for cell in cells:
            values[betas.index(cell.beta)][weights.index(cell.weight)] = getattr(cell, name)
        axes.imshow(values, aspect="auto", cmap="viridis")
        middle = (min(map(min, values)) + max(map(max, values))) / 2
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                ink = "black" if value > middle else "white"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9, color=ink)
        if best is not None:
            axes.plot(weights.index(best.weight), betas.index(best.beta), "o", ms=26, mfc="none", mec="red")
        axes.set(title=f"{name} (vanilla {of_vanilla:.2f})", xlabel="λ", ylabel="β")
        axes.set_xticks(range(len(weights)), [f"{weight:g}" for weight in weights])
        axes.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
