"""Pictures of result pages."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import torch
from matplotlib.figure import Figure
from torch import Tensor

from leakscope.studies.records import Number, Row

_MARKERS = "osD^v<>PX*ph"


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _around(figure: Number) -> tuple[list[float], list[float]]:
    """Lengths of the error bar below and above."""
    low, high = (end if end is not None else figure.value for end in (figure.low, figure.high))
    return [figure.value - low], [high - figure.value]


def trade_off(rows: Sequence[Row], metric: str, label: str, family: Callable[[Row], str]) -> bytes:
    """What each target keeps (accuracy) and gives away, one line per family."""
    figure = Figure(figsize=(8.5, 4.5), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.accuracies and metric in row.worst_case:
            groups.setdefault(family(row), []).append(row)
    for place, (name, own) in enumerate(groups.items()):
        points = sorted(((fmean(row.accuracies), row.worst_case[metric]) for row in own), key=lambda point: point[0])
        bars = [_around(found) for _, found in points]
        axes.errorbar(
            [at for at, _ in points], [found.value for _, found in points],
            yerr=[[below[0] for below, _ in bars], [above[0] for _, above in bars]],
            marker=_MARKERS[place % len(_MARKERS)], markersize=5, capsize=2, linewidth=0.8, label=name,
        )  # fmt: skip
    axes.set(xlabel="accuracy", ylabel=label)
    axes.grid(alpha=0.3)
    if groups:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return png(figure)


def bars(figures: Mapping[str, Number], label: str) -> bytes:
    """One horizontal bar with its interval for each name."""
    figure = Figure(figsize=(7.5, 0.9 + 0.22 * len(figures)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for place, found in enumerate(figures.values()):
        below, above = _around(found)
        axes.barh(place, found.value, color="tab:blue", alpha=0.6)
        axes.errorbar(found.value, place, xerr=[below, above], color="black", capsize=2)
    axes.set_yticks(range(len(figures)), list(figures), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(alpha=0.3, axis="x")
    return png(figure)


def curves(names: Sequence[str], lines: Mapping[str, Sequence[float]], label: str, dashed: str = "control") -> bytes:
    """Lines over named places; those whose name begins with `dashed` are dashed."""
    figure = Figure(figsize=(7.5, 3.5), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for name, values in lines.items():
        axes.plot(list(names), values, "--" if name.startswith(dashed) else "-", marker=".", label=name)
    axes.set_ylabel(label)
    axes.tick_params(axis="x", rotation=45, labelsize=7)
    axes.legend(fontsize=6)
    return png(figure)


def strips(rows: Mapping[str, Tensor], shown: int = 10) -> bytes:
    """Rows of pictures, N×C×H×W in [0, 1] each, under their names."""
    figure = Figure(figsize=(7, 0.55 * len(rows) + 0.2), dpi=90)
    for number, (name, images) in enumerate(rows.items(), start=1):
        axes = figure.add_subplot(len(rows), 1, number)
        padded = torch.nn.functional.pad(images[:shown].clamp(0, 1), (1, 1, 1, 1), value=1.0)
        sheet = padded.permute(2, 0, 3, 1).flatten(1, 2).numpy()
        axes.imshow(sheet.squeeze(-1) if sheet.shape[-1] == 1 else sheet, cmap="gray", vmin=0, vmax=1)
        axes.set_axis_off()
        axes.set_title(name, fontsize=6, loc="left", pad=1)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.97, hspace=0.4)
    return png(figure)


def points(panels: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[int]]]) -> bytes:
    """A panel for each name: x, y and class of its points, each on its own axes."""
    figure = Figure(figsize=(3 * len(panels), 3), dpi=90, layout="constrained")
    for number, (name, (x, y, classes)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        axes.scatter(x, y, c=classes, cmap="tab10", s=4)
        axes.set(title=name, xticks=[], yticks=[])
    return png(figure)


def heat(cells: Mapping[tuple[float, float], Mapping[str, float]], marked: tuple[float, float] | None) -> bytes:
    """A panel for each figure over a grid of (λ, β), with one cell marked."""
    columns, lines = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    names = list(next(iter(cells.values())))
    figure = Figure(figsize=(4 * len(names), 3.2), dpi=100, layout="constrained")
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(1, len(names), place)
        grid = [[cells.get((x, y), {}).get(name, float("nan")) for x in columns] for y in lines]
        axes.imshow(grid, aspect="auto", cmap="viridis")
        known = [own[name] for own in cells.values()]
        middle = (min(known) + max(known)) / 2
        for at, line in enumerate(grid):
            for across, value in enumerate(line):
                ink = "black" if value > middle else "white"
                axes.text(across, at, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
        if marked is not None:
            axes.plot(columns.index(marked[0]), lines.index(marked[1]), "o", ms=24, mfc="none", mec="red")
        axes.set(title=name, xlabel="λ", ylabel="β")
        axes.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        axes.set_yticks(range(len(lines)), [f"{value:g}" for value in lines])
    return png(figure)
