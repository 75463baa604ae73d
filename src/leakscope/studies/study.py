"""From finished audits to a page: small JSON of what was measured, then Markdown drawn from the JSON alone.

Several configurations may feed one page (the same trial on three data sets); each leaves its own JSON
beside it, and the page is drawn anew from all that are there.
"""

from __future__ import annotations

import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor

from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind
from leakscope.experiments.audit import Audit
from leakscope.experiments.plan import Plan
from leakscope.store import Store

Figures = dict[str, Any]  # what JSON can hold
Outcome = Literal["holds", "does not hold", "cannot tell"]


@dataclass(frozen=True)
class Claim:
    """A published statement, what came out here, and the figures that decide."""

    text: str
    outcome: Outcome
    because: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """One finished audit with everything a study may look at."""

    audit: Audit
    plan: Plan
    store: Store

    @property
    def targets(self) -> list[dict[str, Any]]:
        targets: list[dict[str, Any]] = self.audit.document["targets"]
        return targets

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each attack on each target: model, defense, cut, seed, accuracy, attack, metrics, notes, flags."""
        return self.audit.results

    def values(self, row: Mapping[str, Any]) -> dict[str, Tensor]:
        """Every metric of a row, one value a victim (one in all for metrics of a set)."""
        entry = self.store.get("result", row["key"])
        assert entry is not None
        return entry.tensors()

    def guess(self, row: Mapping[str, Any]) -> Tensor:
        """The reconstructions of a row; their originals are `plan.victims.images`."""
        result = self.store.get("result", row["key"])
        assert result is not None
        attack = self.store.get("attack", result.record["attack"])
        assert attack is not None
        return attack.tensors()["guess"]


@dataclass(frozen=True)
class Runs:
    """The audits of one configuration, by the name of their variant."""

    runs: dict[str, Run]

    def __getitem__(self, variant: str) -> Run:
        return self.runs[variant]

    @property
    def documents(self) -> dict[str, dict[str, Any]]:
        return {name: run.audit.document for name, run in self.runs.items()}

    @cached_property
    def origin(self) -> Figures:
        """How the figures came about; printed under every page. Seconds are the stages' own, cached or not."""
        first = next(iter(self.documents.values()))
        return {
            "command": first["command"],
            "created": first["created"],
            "versions": first["versions"],
            "data": first["data"]["name"],
            "seconds": round(sum(row["seconds"] or 0.0 for run in self.runs.values() for row in run.rows), 1),
            "flags": sorted({flag["id"] for document in self.documents.values() for flag in document["flags"]}),
            "controls": {
                name: {kind: control["passed"] for kind, control in document["controls"].items()}
                for name, document in self.documents.items()
            },
        }


class Study(ABC):
    """A frozen dataclass whose fields say how the audits of one configuration are read.

    `part` names the JSON of this configuration among those that share the page.
    """

    kind_name: ClassVar[str]
    revision: ClassVar[int]
    part: str

    @abstractmethod
    def measure(self, runs: Runs) -> Figures:
        """The small JSON: figures with intervals and claims. Everything the page shows is in it."""

    @abstractmethod
    def page(self, parts: Mapping[str, Figures]) -> str:
        """The page as Markdown, from the JSON of every part that has been run."""

    def pictures(self, runs: Runs) -> dict[str, bytes]:
        """Files to lay beside the JSON, such as `plot.png`; at most 400 KB each."""
        return {}


STUDIES: Kind[Study] = Kind("study", "leakscope.studies")

#: Pictures in the repository stay small.
LARGEST_PICTURE = 400_000


def published(name: str) -> Figures:
    """Figures of a paper, with their source, from the data files of this package."""
    text = files("leakscope.studies").joinpath("published", f"{name}.json").read_text(encoding="utf-8")
    figures: Figures = json.loads(text)
    return figures


def write_study(study: Study, runs: Runs, results: Path) -> Path:
    """Write `results/KIND/PART.json` and pictures, then draw `results/KIND.md` from all parts."""
    folder = results / study.kind_name
    pictures = study.pictures(runs)
    for name, content in pictures.items():
        if len(content) > LARGEST_PICTURE:
            raise ValueError(f"{name} has {len(content)} bytes, more than {LARGEST_PICTURE}; draw it smaller")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        _replace(folder / f"{study.part}-{name}", content)
    figures = {"origin": runs.origin, **study.measure(runs)}
    text = json.dumps(figures, indent=1, allow_nan=False, ensure_ascii=False, sort_keys=True)
    _replace(folder / f"{study.part}.json", f"{text}\n".encode())
    return draw_page(study, results)


def draw_page(study: Study, results: Path) -> Path:
    """`results/KIND.md` from the JSON beside it."""
    folder = results / study.kind_name
    parts = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    if not parts:
        raise UsageError(f"no figures in {folder}; run `leakscope audit` on a configuration of this study first")
    return _replace(results / f"{study.kind_name}.md", study.page(parts).encode())


def _replace(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.write_bytes(content)
    os.replace(temporary, path)  # noqa: PTH105 (the atomic call, named as such)
    return path
