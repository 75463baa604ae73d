"""Variants become audits, audits become JSON, and the page is drawn from the JSON alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.spec import Kind
from leakscope.core.words import Ruled
from leakscope.experiments.config import AuditConfig
from leakscope.studies import markdown
from leakscope.studies import study as studies
from leakscope.studies.claims import Claim
from leakscope.studies.page import Columns
from leakscope.studies.picks import Pick
from leakscope.studies.records import Drawn, Number, Part
from leakscope.studies.study import Runs, Study, read_part

CONFIG = """
data: digits
splits: {private: 60, heldout: 40, public: 60}
model: {kind: mlp, widths: [8, 8]}
cuts: [relu1]
attacks: [ridge]
metrics: [leak, mse]
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
        """Compares two variants."""

        title: ClassVar[str] = "Counted"
        question: ClassVar[str] = "How many?"
        columns: ClassVar[Columns] = (("leak", "Leak"),)
        trial: str = ""
        note: str = "A note."

        def claims(self) -> Sequence[Claim]:
            return [Claim("c", "one leaks less than two", "nobody", Pick(variant="one"), Pick(variant="two"))]

        def pictures(self, runs: Runs, part: Part) -> Sequence[tuple[Drawn, bytes]]:
            for own in runs.runs.values():
                guess = own.guess(own.entries[0].result)
                assert guess is not None
                assert len(guess) == len(own.values(own.entries[0].result)["leak"])
            return [(Drawn("dot.png", "A dot"), b"png")]

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
    part = read_part(tmp_path / "docs/counted/digits.json")
    assert [(row.variant, row.victims, row.seeds) for row in part.rows] == [("one", 8, (1,)), ("two", 6, (2,))]
    assert part.origin.seeds == (1, 2)
    assert part.claims[0].verdict is Ruled.CANNOT_TELL
    assert (tmp_path / "docs/counted/digits-dot.png").read_bytes() == b"png"
    text = (tmp_path / "docs/counted.md").read_text()
    for wanted in ("# Counted", "How many?", "## digits", "A note.", "counted/digits-dot.png", "**cannot tell**",
                   "`mlp:widths=[8,8]`", 'training (one): {"epochs": 1}', 'splits (two): {"private": 60',
                   "Seeds 1, 2; 8 victims"):  # fmt: skip
        assert wanted in text, wanted


def test_figures_of_an_older_version_are_refused_in_one_line(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"origin": {}, "claims": []}))
    with pytest.raises(UsageError, match=r"old\.json is not what this version of Leakscope writes"):
        read_part(old)


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


def test_variants_of_a_scale_lie_over_what_else_it_says(tmp_path: Path) -> None:
    """Before, a variant that trains otherwise than its scale was the same network under another name."""
    config = tmp_path / "series.yaml"
    tree = yaml.safe_load(CONFIG)
    own = {"usual": {}, "short": {"training": {"epochs": 1}, "victims": 5}}
    tree["scales"]["apart"] = {"training": {"epochs": 7}, "victims": 4, "variants": own}
    config.write_text(yaml.safe_dump(tree))
    found = AuditConfig.read_all(config, {}, "apart")
    assert {name: (c.victims, c.training.epochs) for name, c in found.items()} == {"usual": (4, 7), "short": (5, 1)}
    assert AuditConfig.read_all(config, {"victims": 3}, "apart")["short"].victims == 3


def test_an_unknown_study_is_refused_before_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "series.yaml"
    config.write_text(CONFIG.replace("counted", "nonsense"))
    assert run(app, ["audit", str(config), "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (12.345, "12.35"), (1234.5, "1234.5"), (1e-5, "1.00e-05"), (0.0, "0.000"), (-45.678, "-45.68"),
     (Number(0.5, 0.4, 0.6), "0.500 [0.400, 0.600]"), (Number(0.5), "0.500")],
)  # fmt: skip
def test_numbers_are_printed_to_be_read(value: object, text: str) -> None:
    assert markdown.cell(value) == text


def test_a_table_cannot_be_broken_by_its_entries() -> None:
    assert markdown.table(("a",), [("x|y\nz",), (None,)]).splitlines()[2:] == ["| x\\|y z |", "| – |"]
