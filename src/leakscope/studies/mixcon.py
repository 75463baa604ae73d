"""MixCon's experiments beside its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from leakscope.experiments.reading import read_trained
from leakscope.studies.claims import Claim, Measured
from leakscope.studies.drawing import bars, heat, trade_off
from leakscope.studies.page import Columns
from leakscope.studies.picks import ANY, Pick, settings_of
from leakscope.studies.records import Drawn, Part, Row, Table
from leakscope.studies.rows import REPEATED
from leakscope.studies.study import STUDIES, Runs, Study

PAPER = "Li et al., 2020"
#: Variants of the synthetic experiment, each with points of its own.
DRAWS = "[0-9]*"
#: Points of accuracy within which a published figure counts as reproduced, and which a sweet spot may cost.
CLOSE, COST = 0.03, 0.01
SEARCH = ("search",)
#: The published search on points (spec/mixcon.md); weight decay 1e-4 is the gradient of ½·1e-4·‖x‖².
RECIPE = {"distance": "l1", "optimizer": "sgd", "steps": 500, "tv": 0.0, "norm": 5e-5, "toward": "zero"}


def mixcon(weight: float | str, beta: float | str, variant: str, **settings: Any) -> Pick:
    name = f"MixCon ({weight}, {beta})" if weight != ANY else "MixCon"
    return Pick(("mixcon",), {"weight": weight, "beta": beta, **settings}, variant, free=("epsilon",), name=name)


def under(pick: Pick, attacks: tuple[str, ...]) -> Pick:
    """The same targets under named attacks."""
    name = f"{pick.name} under {' or '.join(attacks)}" if attacks else pick.name
    recipe = RECIPE if attacks == SEARCH else {}
    return replace(pick, attacks=attacks, recipe=recipe, name=name)


def _synthetic() -> Iterator[Claim]:
    vanilla = Pick(("none",), variant=DRAWS, name="vanilla")
    accuracies = (
        ("vanilla", vanilla, 0.915), ("MixCon (0.1, 0.01)", mixcon(0.1, 0.01, DRAWS), 0.88),
        ("MixCon (0.1, 0)", mixcon(0.1, 0.0, DRAWS), 0.5),
        ("MixCon (0.1, 0) on raw features", mixcon(0.1, 0.0, DRAWS, unit_norm=False), 0.5),
        ("MixCon (1, 0) on raw features, trained gently", mixcon(1.0, 0.0, "gentle", unit_norm=False), 0.5),
    )  # fmt: skip
    for name, pick, said in accuracies:
        yield Claim(
            f"synthetic-{name}", f"{name}: {said:.1%} of test points right, within {CLOSE}", f"{PAPER}, table 1", pick,
            said, "equal", "accuracy", minimum=CLOSE,
        )  # fmt: skip
    gentle = Pick(("none",), variant="gentle", name="vanilla, gentle")
    pairs = (
        ("MixCon (0.1, 0.01)", mixcon(0.1, 0.01, DRAWS), vanilla),
        ("MixCon (1, 0.01), trained gently", mixcon(1.0, 0.01, "gentle", unit_norm=False), gentle),
    )
    for name, ours, twin in pairs:
        for attacks, told in ((SEARCH, "the published search"), ((), "the strongest attack")):
            yield Claim(
                f"synthetic-{name}-{told}", f"{name} is harder to invert than vanilla: higher MSE by {told}",
                f"{PAPER}, table 2", under(ours, attacks), under(twin, attacks), "more", "mse",
            )  # fmt: skip


def _pictures() -> Iterator[Claim]:
    vanilla = Pick(("none",), variant="table", name="vanilla")
    unicon = Pick(("unicon",), variant="table", free=(ANY,), name="UniCon")
    ours = mixcon(ANY, ANY, "table")
    published = (("UniCon", unicon, vanilla, "table 4"), ("MixCon", ours, vanilla, "table 3"),
                 ("MixCon", ours, unicon, "table 4"))  # fmt: skip
    for name, left, right, table in published:
        for attacks, told in ((SEARCH, "the published search"), ((), "the strongest attack")):
            yield Claim(
                f"{name}-{right.name}-{told}", f"{name} gives away less than {right.name}: lower SSIM by {told}",
                f"{PAPER}, {table}", under(left, attacks), under(right, attacks), metric="ssim",
            )  # fmt: skip
    gan = ("decoder-gan",)
    yield Claim(
        "gan", "MixCon gives away less than vanilla: lower SSIM by a GAN decoder", f"{PAPER}, table 5",
        under(ours, gan), under(vanilla, gan), metric="ssim",
    )  # fmt: skip
    yield Claim(
        "accuracy", f"MixCon keeps vanilla's accuracy within {COST}", f"{PAPER}, table 3", ours, vanilla, "more",
        "accuracy", minimum=0.0, margin=COST,
    )  # fmt: skip
    sweet = mixcon(ANY, ANY, "sweet")
    yield Claim(
        "sweet-accuracy", f"MixCon at its sweet spot keeps vanilla's accuracy within {COST}", f"{PAPER}, figure 3",
        sweet, vanilla, "more", "accuracy", minimum=0.0, margin=COST,
    )  # fmt: skip
    yield Claim("sweet-leak", "MixCon at its sweet spot leaks less than vanilla", PAPER, sweet, vanilla)
    every, stopped = mixcon(ANY, ANY, "table|sweet"), Pick(("none",), variant="table|short", name="vanilla")
    yield Claim("matched", "at equal accuracy MixCon leaks less than vanilla", PAPER, every, stopped, matched=True)
    yield Claim(
        "separability", "MixCon brings features closer together (mean distance over pairs)", f"{PAPER}, figure 3", ours,
        vanilla, metric="separability", minimum=0.0,
    )  # fmt: skip


CLAIMS = (*_synthetic(), *_pictures())


@STUDIES.register("mixcon", revision=2)
@dataclass(frozen=True)
class MixConStudy(Study):
    """Separability at the cut: the synthetic experiment, pictures, and the grid of (λ, β) with its sweet spot.

    On points there is a variant for each draw, named by a number, and `deeper`, `wider`, `gentle`, `published-init`; on
    pictures there are `table`, `grid`, `sweet` (a weaker λ) and `short` (vanilla stopped early).
    """

    title: ClassVar[str] = "MixCon: separability at the cut"
    question: ClassVar[str] = (
        "Can features be brought so close together that a network still tells its classes apart while nobody can "
        "invert it (Li et al., 2020)? The paper attacks by search; here the same targets also meet a linear and a "
        "learned attack, and accuracies are compared before leaks are."
    )
    columns: ClassVar[Columns] = (
        ("leak", "Leak"), ("ssim", "SSIM"), ("psim[alexnet]", "PSIM"), ("mse", "MSE"), ("cosine", "Cosine"),
    )  # fmt: skip
    repeats: ClassVar[str] = DRAWS
    aside: ClassVar[str] = "grid"

    trial: str = ""
    note: str = ""

    def claims(self) -> Sequence[Claim]:
        return CLAIMS

    def measured(self, runs: Runs) -> Measured:
        distances, training = {}, {}
        for run in runs.runs.values():
            for target in run.targets.values():
                distances[target.key] = target.separability.mean
                trained = None if target.trained is None else read_trained(run.store, target.trained)
                if trained is not None and trained.accuracy is not None:
                    training[target.key] = trained.accuracy
        return {"separability": distances, "train-accuracy": training}

    def tables(self, runs: Runs, measured: Measured, rows: Sequence[Row]) -> Sequence[Table]:
        del rows
        seen = tuple(
            (variant, target.defense.label, str(target.seed), measured["train-accuracy"].get(key), target.accuracy,
             target.separability.min, target.separability.mean, target.separability.max)
            for variant, run in runs.runs.items() for key, target in run.targets.items()
        )  # fmt: skip
        header = ("Variant", "Defence", "Seed", "Train", "Test", "Distance: min", "mean", "max")
        tables = [Table("Accuracy and distances of features over pairs, by seed", header, seen)]
        cells = _cells(runs)
        if cells:
            best = sweet_spot(cells, _vanilla(runs))
            told = "No cell keeps its accuracy within a point of vanilla's: there is no sweet spot on this grid."
            if best is not None:
                where = f"λ = {best[0]:g}, β = {best[1]:g}"
                told = f"Sweet spot, the closest features within a point of vanilla's accuracy: {where}."
            seeds = sorted({target.seed for _, target in runs.targets(mixcon(ANY, ANY, "grid"))})
            told += f" Vanilla gets {_vanilla(runs):.1%} right. Seed {', '.join(map(str, seeds))}."
            listed = tuple((weight, beta, *own.values()) for (weight, beta), own in cells.items())
            tables.append(Table("The grid of (λ, β)", ("λ", "β", "Accuracy", "Mean distance"), listed, told))
        return tables

    def pictures(self, runs: Runs, part: Part) -> Sequence[tuple[Drawn, bytes]]:
        plot = trade_off(part.rows, "leak", "leak of the strongest attack on each victim", setting_of)
        drawn = [(Drawn("plot.png", "Accuracy and leak of every setting"), plot)]
        seen = {
            f"{setting_of(row)}: {attack.attack.kind}": attack.metrics["ssim"]
            for row in part.rows if row.variant != self.aside
            for attack in row.attacks if "ssim" in attack.metrics
        }  # fmt: skip
        if seen:
            drawn.insert(0, (Drawn("attacks.png", "SSIM of what each attack rebuilt, by target"), bars(seen, "SSIM")))
        cells = _cells(runs)
        if cells:
            marked = sweet_spot(cells, _vanilla(runs))
            drawn.append((Drawn("grid.png", "Accuracy and mean distance over λ and β"), heat(cells, marked)))
        return drawn


def setting_of(row: Row) -> str:
    """`vanilla`, `UniCon`, or `MixCon (λ, β)`, with the variant where it is another network or training."""
    settings = settings_of(row.defense)
    name = {"none": "vanilla", "unicon": "UniCon"}.get(row.defense.kind, row.defense.kind)
    if row.defense.kind == "mixcon":
        name = f"MixCon ({settings['weight']:g}, {settings['beta']:g}){'' if settings['unit_norm'] else ', raw'}"
    return name if row.variant in {REPEATED, "table"} else f"{name}, {row.variant}"


Cells = Mapping[tuple[float, float], Mapping[str, float]]


def _cells(runs: Runs) -> Cells:
    """Accuracy and mean distance of every (λ, β) of the grid, first seed."""
    found: dict[tuple[float, float], dict[str, float]] = {}
    for _, target in runs.targets(mixcon(ANY, ANY, "grid")):
        settings = settings_of(target.defense)
        cell = (float(settings["weight"]), float(settings["beta"]))
        found.setdefault(cell, {"accuracy": target.accuracy or 0.0, "mean distance": target.separability.mean})
    return found


def _vanilla(runs: Runs) -> float:
    """Accuracy without a defence, on the grid's first seed."""
    targets = (target for _, target in runs.targets(Pick(("none",), variant="grid")))
    return next((target.accuracy for target in targets if target.accuracy is not None), 1.0)


def sweet_spot(cells: Cells, vanilla: float) -> tuple[float, float] | None:
    """The cell with the closest features among those whose accuracy is within a point of vanilla's."""
    useful = [cell for cell, own in cells.items() if own["accuracy"] >= vanilla - COST]
    return min(useful, key=lambda cell: cells[cell]["mean distance"], default=None)
