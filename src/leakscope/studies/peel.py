"""PEEL and what came after it, on finished audits of residual networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from leakscope.studies.claims import Claim, Measured
from leakscope.studies.drawing import bars, strips
from leakscope.studies.page import Columns, name_of
from leakscope.studies.picks import Pick
from leakscope.studies.records import Drawn, Part, Row, Table
from leakscope.studies.study import STUDIES, Run, Runs, Study, data_name

PAPER = "Arif et al., 2025"
#: Decibels that count, and that a change may cost before it counts as a cost.
COUNTS, MARGIN = 0.5, 1.0
PEEL, OURS = ("peel",), ("peel-exact", "e2e-lbfgs")
#: What the paper says: statement, its source, and the variants of which the first leaks more.
MORE = (
    ("random weights are easier to invert than trained ones", "tables II and III", "U", "P"),
    ("random weights are easier to invert than trained ones, with pooling", "tables II and III", "MU", "MP"),
    ("pooling hurts the attack on random weights", "tables II and III", "U", "MU"),
    ("pooling hurts the attack on trained weights", "tables II and III", "P", "MP"),
    ("without shortcuts less is rebuilt (no skip, no peel)", "figure 9", "U", "no-skip"),
    ("strides hurt the attack on trained weights", "figure 17", "P", "strided-P"),
    ("pooling hurts the attack on random weights, at 112 pixels", "tables II and III", "size-18", "size-18-pooling"),
    ("without shortcuts less is rebuilt, at 112 pixels", "figure 9", "size-18", "size-18-no-skip"),
)
#: And those of which the first leaks no less, within the margin.
NO_LESS = (
    ("depth does not hurt: twice as many blocks", "figures 13 and 16", "deeper", "U"),
    ("depth does not hurt: 152 against 18", "figures 13 and 16", "U", "shallower"),
    ("depth does not hurt: 34 against 18", "figures 13 and 16", "depth-34", "depth-18"),
    ("depth does not hurt: 50 against 18", "figures 13 and 16", "depth-50", "depth-18"),
    ("depth does not hurt: 152 against 18", "figures 13 and 16", "depth-152", "depth-18"),
    ("depth does not hurt: 34 against 18 at 112 pixels", "figures 13 and 16", "size-34", "size-18"),
    ("depth does not hurt: 50 against 18 at 112 pixels", "figures 13 and 16", "size-50", "size-18"),
    ("depth does not hurt: 152 against 18 at 112 pixels", "figures 13 and 16", "size-152", "size-18"),
    ("width hardly matters: HRN-5x5x3x against ResNet-18", "table IV", "HRN-5x5x3x", "ResNet-18"),
    ("width hardly matters: HRN-2x5x3x against ResNet-18", "table IV", "HRN-2x5x3x", "ResNet-18"),
)
#: Every configuration that published PEEL meets.
VARIANTS = (
    "U", "P", "MU", "MP", "no-skip", "strided-U", "strided-P", "deeper", "shallower", "ir", "depth-18", "depth-34",
    "depth-50", "depth-152", "ResNet-18", "HRN-5x5x3x", "HRN-2x5x3x",
    "ir-152", "size-18", "size-34", "size-50", "size-152", "size-18-224", "size-18-pooling", "size-18-no-skip",
)  # fmt: skip


def at(variant: str, attacks: tuple[str, ...] = (), name: str = "") -> Pick:
    return Pick(("none",), variant=variant, attacks=attacks, name=name or variant)


def _claims() -> Iterator[Claim]:
    for attacks, told in ((PEEL, "under PEEL"), ((), "under the strongest attack")):
        for text, source, first, second in MORE:
            yield Claim(
                f"{first}-{second}-{told}", f"{told}: {text}", f"{PAPER}, {source}", at(first, attacks),
                at(second, attacks), "more", "psnr", minimum=COUNTS,
            )  # fmt: skip
        for text, source, first, second in NO_LESS:
            yield Claim(
                f"{first}-{second}-{told}", f"{told}: {text}", f"{PAPER}, {source}", at(first, attacks),
                at(second, attacks), "more", "psnr", minimum=0.0, margin=MARGIN,
            )  # fmt: skip
    for variant in VARIANTS:
        peel = at(variant, PEEL, f"PEEL on {variant}")
        embedding = at(variant, ("embedding",), f"embedding inversion on {variant}")
        yield Claim(
            f"embedding-{variant}", f"PEEL rebuilds more than embedding inversion ({variant})", f"{PAPER}, figure 2",
            peel, embedding, "more", "psnr", minimum=COUNTS,
        )  # fmt: skip
        yield Claim(
            f"ours-{variant}", f"exact peeling or end-to-end descent rebuilds more than PEEL ({variant})", "Leakscope",
            at(variant, OURS, f"ours on {variant}"), peel, "more", "psnr", minimum=COUNTS,
        )  # fmt: skip


CLAIMS = tuple(_claims())


@STUDIES.register("peel", revision=2)
@dataclass(frozen=True)
class PeelStudy(Study):
    """What residual networks give away to PEEL and to ours, beside the paper's tables.

    `trial` is `faces`, `depths`, `widths`, `sizes`, `xray` or `demo`; pictures of people are not drawn.
    """

    title: ClassVar[str] = "PEEL: what residual networks give away"
    question: ClassVar[str] = (
        "How much of its input can be peeled out of a residual network, block by block, by somebody who holds the "
        "weights and the features at the cut, and no pictures (PEEL, Arif et al., 2025)? Each claim is asked twice: of "
        "published PEEL, and of the strongest attack; where the answers differ, the claim is about PEEL's solver and "
        "not about what the network gives away. *U*: random weights, *P*: trained, *M*: a max-pooling stem."
    )
    columns: ClassVar[Columns] = (
        ("psnr", "PSNR (dB)"), ("mse", "MSE"), ("ssim", "SSIM"), ("leak", "Leak"), ("reidentified", "Picked out again"),
    )  # fmt: skip

    trial: str = ""
    note: str = ""

    def claims(self) -> Sequence[Claim]:
        return CLAIMS

    def measured(self, runs: Runs) -> Measured:
        """Relative error of every block's input under published PEEL, which table VI reports."""
        found: dict[str, dict[str, float]] = {}
        for run in runs.runs.values():
            for target in run.report.targets:
                for table in target.blocks.attacks if target.blocks is not None else ():
                    if run.report.result(table.result).attack.kind == "peel":
                        for row in table.rows:
                            if row.error is not None:
                                found.setdefault(f"block-error[{row.block}]", {})[target.record.key] = row.error
        return found

    def tables(self, runs: Runs, measured: Measured, rows: Sequence[Row]) -> Sequence[Table]:
        del measured, rows
        return [table for variant, run in runs.runs.items() if (table := _blocks(variant, run)) is not None]

    def pictures(self, runs: Runs, part: Part) -> Sequence[tuple[Drawn, bytes]]:
        found = {name_of(row): row.worst_case["psnr"] for row in part.rows if "psnr" in row.worst_case}
        drawn = [
            (Drawn("psnr.png", "PSNR of the strongest attack on each picture"), bars(found, "PSNR (dB), 100 at most"))
        ]
        if data_name(runs.first.plan) in _PEOPLE:
            return drawn
        for variant, run in runs.runs.items():
            if len(shown := _rebuilt(run)) > 1:
                drawn.append((Drawn(f"{variant}.png", f"Originals and reconstructions, {variant}"), strips(shown, 8)))
        maps = _feature_maps(runs.first)
        if maps:
            drawn.append(
                (Drawn("maps.png", "Inputs of the blocks for one victim, the first block left"), strips(maps, 20))
            )
        return drawn

    def limits(self, runs: Runs) -> Sequence[str]:
        sides = {run.report.data.shape[-1] for run in runs.runs.values()}
        people = data_name(runs.first.plan) in _PEOPLE
        lines = [
            f"Pictures have {' or '.join(map(str, sorted(sides)))} pixels per side; PSNR is averaged over pictures and "
            "ends at 100 dB, so that large differences are at least so large.",
            "`peel` has the published penalties, steps and learning rate, the sign that makes equation 6 the inverse "
            "of the block, and the start and stem inversion that the paper leaves open.",
        ]
        return [*lines, "Faces of real people are kept out of this repository."] if people else lines


_PEOPLE = frozenset({"lfw", "celeba", "olivetti"})


def _blocks(variant: str, run: Run) -> Table | None:
    """Relative error of every block's input by attack, on the first undefended target that has blocks."""
    report = next((t.blocks for t in run.report.targets if t.blocks is not None and t.record.undefended), None)
    if report is None:
        return None
    errors: dict[str, dict[str, float | None]] = {}
    for table in report.attacks:
        kind = run.report.result(table.result).attack.kind
        for row in table.rows:
            errors.setdefault(row.block, {})[kind] = row.error
    kinds = tuple(dict.fromkeys(kind for own in errors.values() for kind in own))
    rows = tuple((block, *(own.get(kind) for kind in kinds)) for block, own in reversed(errors.items()))
    note = (
        f"‖x̂ − x‖/‖x‖ of the input of each block, mean over {report.victims} victims of the first seed. A block that "
        "`peel-exact` fits to the last digits and yet gets wrong folds: several inputs have the same output."
    )
    return Table(f"Block by block, {variant or 'first seed'}", ("Input of", *kinds), rows, note)


def _rebuilt(run: Run) -> dict[str, Any]:
    """Originals above what each attack made of them, on the first seed, as far as the store has that."""
    found = {"original": run.plan.scene.first_victims.images}
    for entry in run.entries:
        if entry.target.seed == run.plan.seeds[0] and (guess := run.guess(entry.result)) is not None:
            found[f"{entry.result.attack.kind}, {entry.target.defense.label}"] = guess
    return found


def _feature_maps(run: Run) -> dict[str, Any]:
    """For one victim, one column per block: the true input, then that of each attack."""
    report = next((target.blocks for target in run.report.targets if target.blocks is not None), None)
    found: dict[str, Any] = {}
    for table in report.attacks if report is not None else ():
        drawn = run.audit.images.get(f"maps/{table.result}")
        if drawn is not None:  # blocks × (true, guessed) × height × width
            found.setdefault("true input", drawn[:, :1].float() / 255)
            found[run.report.result(table.result).attack.kind] = drawn[:, 1:].float() / 255
    return found
