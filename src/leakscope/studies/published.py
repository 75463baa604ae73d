"""Published tables as data files with their source, and what came out here beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from leakscope.core.results import from_json
from leakscope.stats import claims as stats
from leakscope.studies.claims import Claim, Measured, Source, asked, evidence_for
from leakscope.studies.picks import Pick
from leakscope.studies.records import Beside, Number

PAPERS = ("sca", "mixcon", "tldmi", "peel", "cem")
#: How far a figure may lie from a published one and still be the same, in the metric's own unit.
CLOSE = {
    "accuracy": 0.02, "train-accuracy": 0.02, "attack-accuracy": 0.05, "psnr": 1.0, "ssim": 0.05, "ssim-padded": 0.05,
    "psim[alexnet]": 0.05, "cosine": 0.05,
}  # fmt: skip
#: Elsewhere: as a share of the published figure.
CLOSE_SHARE = 0.25


@dataclass(frozen=True)
class PublishedRow:
    """One row of a table; without a pick nothing here answers to it."""

    name: str
    values: Mapping[str, float]
    pick: Pick | None = None
    deviations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedTable:
    """One table, or the part of it that is about one data set.

    `data` are the data sets of ours that are laid beside it, `same_data` those on which figures may be expected to
    agree; `other_scale` are metrics that the paper computed otherwise. Ours times `times` are in the paper's unit.
    """

    id: str
    what: str
    rows: tuple[PublishedRow, ...]
    data: tuple[str, ...]
    same_data: tuple[str, ...] = ()
    other_scale: tuple[str, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Paper:
    """The tables of one paper that one study looks at."""

    study: str
    short: str  # how people call it
    source: str
    tables: tuple[PublishedTable, ...]
    note: str = ""


@cache
def paper(name: str) -> Paper:
    """A paper's figures from the data files of this package."""
    text = files("leakscope.studies").joinpath("published", f"{name}.json").read_text(encoding="utf-8")
    return from_json(Paper, json.loads(text), f"published/{name}.json")


def papers_of(study: str) -> list[Paper]:
    return [found for found in map(paper, PAPERS) if found.study == study]


def beside(found: Paper, data: str, source: Source, measured: Measured) -> Iterable[Beside]:
    """Every published figure that concerns these data, judged for equality; the figures of a table are one family."""
    for table in found.tables:
        if data in table.data:
            yield from _table(found, table, data, source, measured)


def _close(metric: str, value: float, times: float) -> float:
    """The distance within which a figure counts as the same, in our unit."""
    return CLOSE[metric] if metric in CLOSE else max(CLOSE_SHARE * abs(value) / times, 1e-9)


def _table(found: Paper, table: PublishedTable, data: str, source: Source, measured: Measured) -> Iterable[Beside]:
    figures = [(row, metric, value) for row in table.rows for metric, value in row.values.items()]
    family: dict[int, tuple[stats.Claim, stats.Evidence]] = {}
    for place, (row, metric, value) in enumerate(figures):
        times = table.times.get(metric, 1.0)
        if row.pick is not None:
            claim = Claim(
                f"{table.id}, {row.name}, {metric}", f"{row.name}: {metric} is {value:g}", found.source, row.pick,
                value / times, "equal", metric, minimum=_close(metric, value, times),
            )  # fmt: skip
            if asked(claim, source, measured):
                family[place] = claim.judged, evidence_for(claim, source, measured)
    ruled = dict(zip(family, stats.judge(list(family.values())), strict=True))
    for place, (row, metric, value) in enumerate(figures):
        times, ruling = table.times.get(metric, 1.0), ruled.get(place)
        obtained = None
        if ruling is not None and ruling.effect is not None:
            obtained = Number.of(ruling.effect, shift=value / times, times=times)
        if ruling is None or obtained is None:
            verdict = "not run"
        elif metric in table.other_scale:
            verdict = "other scale"
        else:
            verdict = ruling.verdict.value if data in table.same_data else "other data"
        yield Beside(table.id, row.name, metric, value, obtained, verdict, row.deviations.get(metric))
