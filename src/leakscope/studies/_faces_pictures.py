"""Pictures of a study of faces: Pareto plot, sheet of identities, Fisher profiles."""

from __future__ import annotations

import io
from statistics import fmean

import torch

from leakscope.studies._crossed import crossed_interval
from leakscope.studies._faces_grid import MAIN, UNDEFENDED, Grid, kind_of
from leakscope.studies.study import Figures, Run


def pareto(grid: Grid) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9.5, 4.5), dpi=110)
    compared = [key for key in grid.tables if key[0] == MAIN]
    for number, key in enumerate(grid.tables, start=1):
        attack = grid.strongest(key, *compared)
        found = crossed_interval(grid.tables[key][attack]["attack-accuracy"])
        x = 100 * fmean(grid.accuracy[key])
        mean, low, high = (100 * found[name] for name in ("mean", "low", "high"))
        mark = "s" if key[1] == UNDEFENDED else "o" if key[1].startswith("tl-dmi") else "^"
        name = key[1] if key[0] == MAIN else f"{key[0]}: {key[1]}"
        axes.errorbar(
            x, mean, [[mean - low], [high - mean]], fmt=mark, capsize=2, markersize=5, label=f"{number}  {name}"
        )
        axes.annotate(str(number), (x, mean), textcoords="offset points", xytext=(4, 3), fontsize=8)
    axes.set_xlabel("natural accuracy, %")
    axes.set_ylabel("attack accuracy of the strongest common attack, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return _png(figure)


def sheet(run: Run, grid: Grid) -> bytes:
    """Eight identities in the middle of the ranking: a private photo, then the strongest attack on each target."""
    twin = (MAIN, UNDEFENDED)
    attack = grid.strongest(twin)
    order = grid.tables[twin][attack]["knn"].mean(0).argsort()
    middle = order[max(0, len(order) // 2 - 4) :][:8]
    lines, names = [run.plan.victims.images[middle]], ["private photo"]
    for defense in dict.fromkeys(row["defense"] for row in run.rows):
        row = next(
            (r for r in run.rows if r["defense"] == defense and kind_of(r["attack"]) == attack
             and r["seed"] == run.plan.seeds[0]), None)  # fmt: skip
        if row is not None:
            guess = run.guess(row)
            lines.append(guess[:: len(guess) // len(run.plan.victims)][middle])
            names.append(str(defense))
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(lines), 1, figsize=(7, 0.95 * len(lines)), dpi=90)
    for own, images, name in zip(axes, lines, names, strict=True):
        strip = torch.cat(list(torch.nn.functional.pad(images, (1, 1, 1, 1), value=1.0)), dim=2).permute(1, 2, 0)
        own.imshow(strip.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        own.set_title(name, fontsize=7, loc="left", pad=2)
        own.axis("off")
    return _png(figure)


def profiles(fisher: Figures) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5), dpi=110)
    for name, profile in fisher.get("profiles", {}).items():
        axes.plot(
            fisher["layers"], profile["mean"], "--" if name.startswith("control") else "-", marker=".", label=name
        )
    axes.set_ylabel("Fisher information, largest = 1")
    axes.tick_params(axis="x", rotation=45, labelsize=7)
    if fisher:
        axes.legend(fontsize=6)
    return _png(figure)


def _png(figure: object) -> bytes:
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    stream = io.BytesIO()
    figure.tight_layout()
    figure.savefig(stream, format="png", metadata={"Software": None})
    plt.close(figure)
    return stream.getvalue()
