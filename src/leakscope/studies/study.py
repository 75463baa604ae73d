"""From finished audits to a page: small JSON of what was measured, then Markdown drawn from the JSON alone.

Several configurations may feed one page (the same trial on three data sets); each leaves its own JSON, named
after its data, and the page is drawn anew from all that are there.
"""

from __future__ import annotations

import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from torch import Tensor

from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.reports import AuditReport
from leakscope.core.results import AttackResult, Finding, TargetRecord, from_json, to_json
from leakscope.core.spec import Kind
from leakscope.experiments.experiment import TargetSpec
from leakscope.experiments.finished import Audit
from leakscope.experiments.plan import Plan
from leakscope.experiments.stages import read_rebuilt, values_of
from leakscope.store import Store
from leakscope.studies.claims import Claim, Measured, Sample, asked, decide
from leakscope.studies.page import Columns, draw
from leakscope.studies.picks import Pick, attack_identity
from leakscope.studies.published import beside, papers_of
from leakscope.studies.records import Drawn, Part, Row, Table, decided_together
from leakscope.studies.rows import origin, rows_of, setup


@dataclass(frozen=True)
class Run:
    """One finished audit with everything a study may look at."""

    audit: Audit
    plan: Plan
    store: Store

    @property
    def report(self) -> AuditReport:
        return self.audit.report

    @cached_property
    def targets(self) -> dict[str, TargetRecord]:
        return {target.record.key: target.record for target in self.report.targets}

    @property
    def entries(self) -> list[Finding]:
        """One for each attack on each target."""
        return [Finding(self.targets[result.target], result) for result in self.report.results]

    def values(self, result: AttackResult) -> dict[str, Tensor]:
        """Every metric of a result, one value per victim (one in all for metrics of a set)."""
        return values_of(self.store, result)

    def guess(self, result: AttackResult) -> Tensor | None:
        """The reconstructions of a result; their originals are `plan.scene.first_victims.images`.

        None: the store holds scores alone, as one that a pack was unpacked into does.
        """
        rebuilt = read_rebuilt(self.store, result.reconstruction)
        return None if rebuilt is None else rebuilt.images

    def spec(self, target: TargetRecord) -> TargetSpec:
        return next(spec for spec in self.plan.targets if spec.key == target.key)

    def untrained(self, target: TargetRecord) -> SplitModel:
        """The target's network as it was before training; in eval mode, on the CPU."""
        return self.plan.scene.build(self.spec(target)).eval().requires_grad_(False)

    def network(self, target: TargetRecord) -> SplitModel | None:
        """The target's network with its weights; in eval mode, on the CPU. None: they are not in this store."""
        split = self.untrained(target)
        if target.trained is None:
            return split
        entry = self.store.get("trained", target.trained)
        if entry is None:
            return None
        split.load_state_dict(entry.tensors())
        return split


@dataclass(frozen=True)
class Runs:
    """The audits of one configuration, by the name of their variant."""

    runs: Mapping[str, Run]
    _read: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, variant: str) -> Run:
        return self.runs[variant]

    def __contains__(self, variant: str) -> bool:
        return variant in self.runs

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))

    def targets(self, pick: Pick) -> Iterator[tuple[Run, TargetRecord]]:
        """Every target that fits, once, seed by seed."""
        found = {
            target.key: (run, target)
            for variant, run in self.runs.items()
            for target in run.targets.values()
            if pick.fits(variant, target)
        }
        yield from sorted(found.values(), key=lambda each: each[1].seed)

    @cached_property
    def _results(self) -> dict[str, tuple[AttackResult, ...]]:
        """By target: all results on it, whichever variant they come from, as far as they are on the same victims."""
        found: dict[str, dict[str, AttackResult]] = {}
        for run in self.runs.values():
            for result in run.report.results:
                own = found.setdefault(result.target, {})
                first = next(iter(own.values()), result)
                if not result.traits.outside and (result.victims, result.threat) == (first.victims, first.threat):
                    own.setdefault(attack_identity(result.attack), result)
        return {key: tuple(own.values()) for key, own in found.items()}

    def results_on(self, target: TargetRecord) -> tuple[AttackResult, ...]:
        """One result of each attack on a target."""
        return self._results[target.key]

    def samples(self, pick: Pick) -> list[Sample]:
        """Every target that fits with all results on it."""
        return [Sample(target, self.results_on(target)) for _, target in self.targets(pick)]

    def values(self, result: AttackResult) -> dict[str, Tensor]:
        """Every metric of a result; read once."""
        if result.key not in self._read:
            self._read[result.key] = self.first.values(result)
        return self._read[result.key]


class Study(ABC):
    """A frozen dataclass whose fields say how the audits of one configuration are read.

    `trial` tells apart several trials on the same data; `note` is printed with the figures: what a reader must know
    about how open settings were chosen. `claims`, `question` and `columns` are data.
    """

    kind_name: ClassVar[str]
    revision: ClassVar[int]
    title: ClassVar[str]
    question: ClassVar[str]
    columns: ClassVar[Columns]
    #: Variants that repeat one thing on data drawn anew, as a pattern.
    repeats: ClassVar[str] = ""
    #: The variant that only served to choose a setting, so that its seeds are not among those reported.
    aside: ClassVar[str] = ""
    trial: str
    note: str

    @abstractmethod
    def claims(self) -> Sequence[Claim]:
        """What the paper says, as data."""

    def measured(self, runs: Runs) -> Measured:
        """Figures of single targets beyond what their records hold, by metric and key of the target."""
        del runs
        return {}

    def tables(self, runs: Runs, measured: Measured, rows: Sequence[Row]) -> Sequence[Table]:
        """Further tables, folded on the page."""
        del runs, measured, rows
        return ()

    def pictures(self, runs: Runs, part: Part) -> Sequence[tuple[Drawn, bytes]]:
        """The plot first; at most 400 KB each."""
        del runs, part
        return ()

    def limits(self, runs: Runs) -> Sequence[str]:
        """What a sceptic should know before quoting a figure."""
        del runs
        return ()

    def measure(self, runs: Runs) -> Part:
        """The small JSON: figures with intervals and verdicts. Everything the page shows is in it."""
        measured = self.measured(runs)
        claims = self.claims()
        data = data_name(runs.first.plan)
        rows = rows_of(runs, self.repeats)
        present = [claim for claim in claims if asked(claim, runs, measured)]
        return Part(
            study=self.kind_name,
            part=part_name(self, runs.first.plan),
            origin=origin(runs, self.aside),
            setup=setup(runs, self.aside),
            rows=rows,
            claims=decide(present, runs, measured),
            not_asked=tuple(claim.statement for claim in claims if claim not in present),
            published=tuple(row for paper in papers_of(self.kind_name) for row in beside(paper, data, runs, measured)),
            tables=tuple(self.tables(runs, measured, rows)),
            note=self.note,
            limits=tuple(self.limits(runs)),
        )


STUDIES: Kind[Study] = Kind("study", "leakscope.studies")

#: Pictures in the repository stay small.
LARGEST_PICTURE = 400_000


def data_name(plan: Plan) -> str:
    """What the pictures are called: the data set, or the file they come from."""
    config = plan.scene.config
    try:
        data = cast("Any", DATASETS.build(config.data))
    except UsageError:  # pictures handed over in Python
        return plan.scene.short_data_name
    path = getattr(data, "path", None)
    return str(data.kind_name) if path is None else Path(str(path)).stem


def part_name(study: Study, plan: Plan) -> str:
    """The name of a configuration's JSON: its data, and its trial where there are several."""
    return "-".join(filter(None, (data_name(plan), study.trial)))


def write_study(study: Study, runs: Runs, results: Path) -> Path:
    """Write `results/KIND/PART.json` and pictures, then draw `results/KIND.md` from all parts."""
    folder = results / study.kind_name
    part = study.measure(runs)
    drawn = study.pictures(runs, part)
    for picture, content in drawn:
        if len(content) > LARGEST_PICTURE:
            raise ValueError(f"{picture.name} has {len(content)} bytes, more than {LARGEST_PICTURE}; draw it smaller")
    folder.mkdir(parents=True, exist_ok=True)
    for picture, content in drawn:
        _replace(folder / f"{part.part}-{picture.name}", content)
    part = replace(part, pictures=tuple(picture for picture, _ in drawn))
    text = json.dumps(to_json(part), indent=1, allow_nan=False, ensure_ascii=False, sort_keys=True)
    _replace(folder / f"{part.part}.json", f"{text}\n".encode())
    return draw_page(study, results)


def read_part(path: Path) -> Part:
    """A part from its JSON."""
    return from_json(Part, json.loads(path.read_text(encoding="utf-8")), str(path))


def read_page(folder: Path) -> list[Part]:
    """All parts of a page, with the verdicts of the page's one family of claims."""
    return decided_together([read_part(path) for path in sorted(folder.glob("*.json"))])


def draw_page(study: Study, results: Path) -> Path:
    """`results/KIND.md` from the JSON beside it."""
    folder = results / study.kind_name
    parts = read_page(folder)
    if not parts:
        raise UsageError(f"no figures in {folder}; run `leakscope audit` on a configuration of this study first")
    text = draw(study.title, study.question, study.columns, parts, papers_of(study.kind_name))
    return _replace(results / f"{study.kind_name}.md", text.encode())


def _replace(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.write_bytes(content)
    os.replace(temporary, path)  # noqa: PTH105 (the atomic call, named as such)
    return path
