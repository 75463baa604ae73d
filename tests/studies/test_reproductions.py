"""Published tables are data: each entry is whole, and a run is laid beside what was printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from leakscope.cli import app, run
from leakscope.core.spec import Kind
from leakscope.studies import reproductions as listed
from leakscope.studies import study as studies
from leakscope.studies.reproductions import Compared, compared, reproductions
from leakscope.studies.study import Runs, Study, published

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NAMES = ("sca-table2", "mixcon-table3", "tldmi-table3", "peel-table2", "cem-table1")


def test_every_seed_has_its_table() -> None:
    assert set(NAMES) <= set(reproductions())


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_whole(name: str) -> None:
    entry = reproductions()[name]
    assert "small" in entry.scales
    for wanted in entry.scales:
        path, scale = entry.protocol(wanted)
        assert scale is None or scale in yaml.safe_load(path.read_text())["scales"]
    for figure in entry.figures:
        assert entry.published is not None
        paths = [(figure["published"], published(entry.published))]
        for path, tree in paths:
            assert list(listed._walk(tree, path.split("/"))), f"{path} leads nowhere"
        assert figure["published"].count("*") == figure["obtained"].count("*")


def test_figures_stand_side_by_side() -> None:
    entry = replace(reproductions()["peel-table2"], figures=reproductions()["peel-table2"].figures[:1])
    ours = {"configurations": {"U": {"attacks": {"peel": {"psnr": {"mean": 19.0, "low": 18.0, "high": 20.0}}}}}}
    rows = {row.what: row for row in compared(entry, ours)}
    printed = published("peel")["faces"]["II"]
    assert rows["PSNR, U"] == Compared("PSNR, U", printed["U"]["psnr"][0], 19.0, 18.0, 20.0)
    assert rows["PSNR, P"] == Compared("PSNR, P", printed["P"]["psnr"][0], None, None, None)


def test_lists_are_read_by_defence_and_names_are_translated() -> None:
    entry = reproductions()["tldmi-table3"]
    target = {"defense": "tl-dmi:layer=block3", "attacks": {"gmi": {"attack-accuracy": {"mean": 0.1}}}}
    rows = {row.what: row for row in compared(entry, {"targets": [target]})}
    found = rows["attack accuracy in per cent, gmi on tl-dmi"]
    assert found.obtained == pytest.approx(10.0)
    assert found.published is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_was_published_is_found_in_our_own_results(name: str) -> None:
    """Every figure of the results that are kept in docs: a name that no longer fits would read "not run"."""
    entry = reproductions()[name]
    study = yaml.safe_load(entry.protocol("small")[0].read_text())["study"]
    kept = RESULTS / study["kind"] / f"{study['part']}.json"
    for figure in entry.figures:
        rows = compared(replace(entry, figures=[figure]), json.loads(kept.read_text()))
        assert any(row.obtained is not None for row in rows), figure["obtained"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A small published table, with a study that decides one claim."""
    table: Kind[Study] = Kind("study", "leakscope.studies.published")

    @table.register("counted")
    @dataclass(frozen=True)
    class Counted(Study):
        """Counts victims."""

        part: str = "here"

        def measure(self, runs: Runs) -> dict[str, Any]:
            claims = [{"text": "There are victims", "outcome": "holds", "because": "4 of them"}]
            leaks = {name: r.rows[0]["metrics"]["leak"] for name, r in runs.runs.items()}
            return {"leak": leaks, "claims": claims}

        def page(self, parts: Mapping[str, Any]) -> str:
            return "page"

    monkeypatch.setattr(table, "_complete", True)
    monkeypatch.setattr(studies, "STUDIES", table)
    config = tmp_path / "counted.yaml"
    config.write_text(
        "data: digits\nsplits: {private: 100, heldout: 50, public: 50}\nattacks: [ridge]\nvictims: 4\n"
        "metrics: [leak]\ntraining: {epochs: 0}\nstudy: counted\nvariants: {one: {}}\nscales: {tiny: {victims: 3}}\n"
    )
    entry = listed.Reproduction(
        "counted", "Table 0", "Nobody, 2020", {"small": (str(config), "tiny")}, "peel",
        [{"what": "leak, {0}", "published": "runtime/IX/*", "obtained": "leak/one", "times": 1}], "",
    )  # fmt: skip
    monkeypatch.setattr(listed, "reproductions", lambda: {"counted": entry})
    return tmp_path


def test_a_reproduction_runs_and_says_what_holds(counted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--store", str(counted / "store"), "--out", str(counted / "out"), "--quiet"]
    assert run(app, ["reproduce", "counted", *where]) == 0
    told = capsys.readouterr().out
    assert "holds          There are victims: 4 of them" in told
    assert "leak, PEEL" in told
    assert (counted / "out" / "one" / "report.html").exists()
    assert run(app, ["reproduce", "counted", *where, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["claims"][0]["outcome"] == "holds"
    assert document["figures"][0]["published"] == published("peel")["runtime"]["IX"]["PEEL"]
    assert document["figures"][0]["low"] <= document["figures"][0]["obtained"] <= document["figures"][0]["high"]


def test_what_is_missing_is_one_line(counted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["reproduce", "counted", "--scale", "paper"]) == 2
    assert "it has: small" in capsys.readouterr().err
    assert run(app, ["reproduce", "table9"]) == 2
    assert "counted" in capsys.readouterr().err
