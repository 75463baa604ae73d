"""The page of the study `mixcon`, from its figures alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from leakscope.studies.markdown import cell, claims, number, origin, table
from leakscope.studies.study import Figures, published


def page(parts: Mapping[str, Figures]) -> str:
    sections = [
        "# MixCon: separability at the cut",
        f"Beside the tables of {published('mixcon')['source']}. `[a, b]` is a 95 % interval over seeds (Student's t); "
        "differences are taken seed by seed.",
    ]
    for part, figures in parts.items():
        sections += _synthetic(figures) if part == "synthetic" else _pictures(part, figures)
        sections += [figures["note"]] if figures.get("note") else []
        sections.append(origin(figures["origin"]))
    return "\n\n".join(sections) + "\n"


def _synthetic(figures: Figures) -> Iterable[str]:
    yield "## The synthetic experiment"
    yield claims(figures["claims"])
    paper = figures["published"]
    yield (
        "Every seed draws its own points. *Raw*: distances of features as they are; elsewhere features have unit norm, "
        "as the paper says it does in practice. *Gentle*: a tenth of the published rate, batches of 100, 40 epochs. "
        "MSE and cosine (MCS) of inversion by the published search, which starts here from the mean public point and "
        "so does better throughout than in the paper; distances are min, mean and max over pairs of test points. With "
        "5 % of labels flipped no rule expects more than 89.9 % of test points right; the published 91.5 % is a draw "
        "of 200."
    )
    yield table(
        ("Setting", "Train", "published", "Test", "published", "MSE", "published", "MCS", "published",
         "MSE, strongest attack", "Distances"),
        (_point(name, row, paper.get(name, {})) for name, row in figures["settings"].items()),
    )  # fmt: skip
    yield "Against vanilla, on the same seed:"
    yield table(
        ("Setting", "MSE, search", "MCS, search", "MSE, strongest attack"),
        (
            (name, *(_mean(row[metric]) for metric in ("mse", "mcs", "strongest_mse")))
            for name, row in figures["paired"].items()
        ),
    )
    yield (
        "Directions of unit-norm features can all fall together while their lengths still tell the classes apart: with "
        "β = 0 the classifier keeps its accuracy. Only on raw features can the term bring every feature to one point, "
        "and there λ decides whether it does."
    )
    if figures["published_init"]:
        rates = ", ".join(f"{100 * value:.1f} %" for value in figures["published_init"])
        yield (
            "The published initialisation, weights and biases from N(u, 1) with u ~ N(0, 1), does not train at the "
            f"published rate of 0.1: test accuracy {rates}. First scores are in the hundreds, and the first steps turn "
            "every unit off. All rows above start from PyTorch's initialisation."
        )


def _point(name: str, row: Mapping[str, Any], paper: Mapping[str, float]) -> tuple[object, ...]:
    cells: list[object] = [name]
    for metric in ("train", "test", "mse", "mcs"):
        cells += [_mean(row[metric]), paper.get(metric)]
    distances = " / ".join(number(row["distances"][end]) for end in ("min", "mean", "max"))
    return (*cells, _mean(row["strongest_mse"]), distances)


def _pictures(part: str, figures: Figures) -> Iterable[str]:
    yield f"## {part}"
    yield claims(figures["claims"])
    yield (
        "SSIM and PSIM as mean ± standard deviation over pictures (worst case: the best rebuilt picture). SSIM keeps "
        "its sign here; the paper's is clipped at 0 by our reading."
    )
    yield table(
        ("Setting", "Accuracy", "Distances", "Attack", "leak", "SSIM", "PSIM"),
        (line for name, row in figures["settings"].items() for line in _attacks(name, row)),
    )
    if figures["published"]:
        yield "Published, by search:"
        yield table(
            ("Setting", "Accuracy", "SSIM", "PSIM"),
            (
                (name, row["accuracy"], *(_published_spread(row[metric]) for metric in ("ssim", "psim")))
                for name, row in figures["published"].items()
            ),
        )
    if figures["grid"] is not None:
        yield from _grid(part, figures["grid"])


def _attacks(name: str, row: Mapping[str, Any]) -> Iterable[tuple[object, ...]]:
    distances = " / ".join(number(row["distances"][end]) for end in ("min", "mean", "max"))
    for attack, metrics in row["attacks"].items():
        psim = next((metric for metric in metrics if metric.startswith("psim")), None)
        spreads = [None if metric is None else _spread(metrics[metric]) for metric in ("ssim", psim)]
        yield (name, _mean(row["accuracy"]), distances, attack, metrics["leak"]["mean"], *spreads)


def _grid(part: str, grid: Mapping[str, Any]) -> Iterable[str]:
    yield "### The grid of (λ, β)"
    best, vanilla = grid["sweet_spot"], grid["vanilla"]
    if best is None:
        yield "No cell keeps its accuracy within a point of vanilla's: there is no sweet spot on this grid."
    else:
        yield (
            f"Sweet spot: λ = {best['weight']:g}, β = {best['beta']:g}, the closest features (mean distance "
            f"{number(best['distance'])} against {number(vanilla['distance'])}) among cells whose accuracy is within a "
            f"point of vanilla's ({number(best['accuracy'])} against {number(vanilla['accuracy'])})."
        )
    yield f"![accuracy and mean distance over λ and β](mixcon/{part}-grid.png)"


def _spread(values: Mapping[str, float]) -> str:
    return f"{number(values['mean'])} ± {number(values['std'])} ({number(values['worst'])})"


def _published_spread(values: list[float]) -> str:
    mean, deviation, worst = values
    return f"{number(mean)} ± {number(deviation)} ({number(worst)})"


def _mean(figures: Mapping[str, Any]) -> str:
    if figures["low"] is None:
        return cell(figures["mean"])
    return f"{number(figures['mean'])} [{number(figures['low'])}, {number(figures['high'])}]"
