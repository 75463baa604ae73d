"""Pictures of the trial of sparse coding: reconstructions, the effect of sparsity, where features lie."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from leakscope.studies._crossed import crossed_interval
from leakscope.studies._sparse_claims import Trial, known_as
from leakscope.studies.study import Run

SHOWN = 10
LAMBDAS = {"sca:sparsity=0.1": 0.1, "sca": 0.25, "sca:sparsity=0.5": 0.5, "sca:sparsity=0.75": 0.75}


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def reconstructions(run: Run) -> bytes:
    """Victims above what the strongest attack on each defence made of them, on the first seed."""
    first = run.plan.seeds[0]
    strips: dict[str, Any] = {"original": run.plan.victims.images[:SHOWN]}
    for target in run.targets:
        rows = [row for row in run.rows if row["target"] == target["key"]]
        if target["seed"] == first and rows:
            best = max(rows, key=lambda row: row["metrics"]["leak"]["mean"])
            strips[f"{known_as(target['defense'])} ({best['attack'].partition(':')[0]})"] = run.guess(best)[:SHOWN]
    figure = Figure(figsize=(7, 0.5 * len(strips)), dpi=90)
    for number, (name, images) in enumerate(strips.items(), start=1):
        axes = figure.add_subplot(len(strips), 1, number)
        sheet = images.clamp(0, 1).permute(2, 0, 3, 1).flatten(1, 2).numpy()
        axes.imshow(sheet.squeeze(-1) if sheet.shape[-1] == 1 else sheet, cmap="gray", vmin=0, vmax=1)
        axes.set_axis_off()
        axes.set_title(name, fontsize=6, loc="left", pad=1)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.98, hspace=0.35)
    return _png(figure)


def sweep_plot(trials: Mapping[str, Trial]) -> bytes:
    """Worst-case leak and accuracy against λ; the twin and one sparse layer as lines."""
    figure = Figure(figsize=(7, 3), dpi=90, layout="constrained")
    for number, (threat, found) in enumerate(trials.items(), start=1):
        axes = figure.add_subplot(1, len(trials), number)
        known = [name for name in LAMBDAS if name in found.leak]
        at = [LAMBDAS[name] for name in known]
        leak = [crossed_interval(found.leak[name]) for name in known]
        spans = [[e["mean"] - e["low"] for e in leak], [e["high"] - e["mean"] for e in leak]]
        axes.errorbar(at, [e["mean"] for e in leak], yerr=spans, marker="o", label="leak, SCA")
        axes.plot(at, [float(np.mean(found.accuracy[name])) for name in known], "s--", label="accuracy, SCA")
        for name, style in (("none", "k-"), ("sparse-standard", "k:")):
            if name in found.leak:
                axes.axhline(float(found.leak[name].mean()), color=style[0], linestyle=style[1], label=f"leak, {name}")
        axes.set(title=threat, xlabel="λ", ylim=(0, 1.02))
        axes.legend(fontsize=6)
    return _png(figure)


def umap_plot(maps: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """One panel a kind of layer, each on its own axes, coloured by class."""
    figure = Figure(figsize=(3 * len(maps), 3), dpi=90, layout="constrained")
    for number, (kind, (points, labels)) in enumerate(maps.items(), start=1):
        axes = figure.add_subplot(1, len(maps), number)
        axes.scatter(points[:, 0], points[:, 1], c=labels, cmap="tab10", s=4)
        axes.set(title=f"two {kind} layers", xticks=[], yticks=[])
    return _png(figure)
