"""Variants become audits, audits become JSON, and the page is drawn from the JSON alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind
from leakscope.experiments.config import AuditConfig
from leakscope.studies import markdown
from leakscope.studies import study as studies
from leakscope.studies.study import Runs, Study

CONFIG = """
data: digits
splits: {private: 200, heldout: 100, public: 200}
model: {kind: convnet}
attacks: [ridge]
victims: 8
training: {epochs: 1}
variants:
  one: {seeds: [1]}
  two: {seeds: [2], victims: 6}
scales:
  tiny: {victims: 4}
study: counted
"""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    table: Kind[Study] = Kind("study", "leakscope.studies.published")

    @table.register("counted")
    @dataclass(frozen=True)
    class Counted(Study):
        """Counts victims."""

        part: str = "here"

        def measure(self, runs: Runs) -> dict[str, Any]:
            counts = {name: len(run.values(run.rows[0])["leak"]) for name, run in runs.runs.items()}
            same = all(len(run.guess(run.rows[0])) == counts[name] for name, run in runs.runs.items())
            return {"counts": counts, "guesses": same}

        def page(self, parts: Mapping[str, Any]) -> str:
            return "\n".join(f"{part} {figures['counts']}" for part, figures in parts.items())

        def pictures(self, runs: Runs) -> dict[str, bytes]:
            return {"dot.png": b"png"}

    monkeypatch.setattr(table, "_complete", True)
    monkeypatch.setattr(studies, "STUDIES", table)


@pytest.mark.usefixtures("counted")
def test_variants_become_a_page(tmp_path: Path) -> None:
    config = tmp_path / "series.yaml"
    config.write_text(CONFIG + f"results: {tmp_path / 'docs'}\n")
    out = tmp_path / "out"
    code = run(app, ["audit", str(config), "--store", str(tmp_path / "store"), "--out", str(out), "--quiet"])
    assert code in {0, 4}
    assert {path.parent.name for path in out.glob("*/report.html")} == {"one", "two"}
    figures = json.loads((tmp_path / "docs/counted/here.json").read_text())
    assert figures["counts"] == {"one": 8, "two": 6}
    assert figures["guesses"]
    assert figures["origin"]["data"] == "digits"
    assert (tmp_path / "docs/counted/here-dot.png").read_bytes() == b"png"
    assert (tmp_path / "docs/counted.md").read_text() == "here {'one': 8, 'two': 6}"


def test_the_scale_lies_over_the_variant(tmp_path: Path) -> None:
    config = tmp_path / "series.yaml"
    config.write_text(CONFIG)
    configs = AuditConfig.read_all(config, {"training.epochs": 3}, "tiny")
    assert {name: (c.victims, c.seeds, c.training.epochs) for name, c in configs.items()} == {
        "one": (4, [1], 3),
        "two": (4, [2], 3),
    }
    with pytest.raises(UsageError, match="one, two"):
        AuditConfig.read(config, {})


def test_an_unknown_study_is_refused_before_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "series.yaml"
    config.write_text(CONFIG.replace("counted", "nonsense"))
    assert run(app, ["audit", str(config), "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (12.345, "12.35"), (1234.5, "1234.5"), (1e-5, "1.00e-05"), (0.0, "0.000"), (-45.678, "-45.68")],
)
def test_numbers_are_printed_to_be_read(value: float, text: str) -> None:
    assert markdown.cell(value) == text


def test_a_table_cannot_be_broken_by_its_entries() -> None:
    assert markdown.table(("a",), [("x|y\nz",), (None,)]).splitlines()[2:] == ["| x\\|y z |", "| – |"]
