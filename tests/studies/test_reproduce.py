"""A published table through the command: published, obtained and verdict of every row, then every claim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakscope.cli import app, run
from leakscope.studies import reproductions
from leakscope.studies.reproductions import Listed, Reproduction, listed

CONFIG = """
data: {kind: gaussians, count: 240}
splits: {private: 80, heldout: 80, public: 80}
model: {kind: mlp, widths: [20, 2, 10]}
cuts: [relu2]
attacks: [ridge]
metrics: [leak, mse, cosine]
threat: {knows_defense: false}
training: {epochs: 2}
victims: 20
defenses: [none]
study: mixcon
variants:
  "0": {data.seed: 0, seeds: [0]}
  "1": {data.seed: 1, seeds: [1]}
scales: {tiny: {victims: 8}}
"""


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A reproduction of MixCon's first table at a tiny scale."""
    (tmp_path / "points.yaml").write_text(CONFIG)
    entry = Reproduction("points", "mixcon", ("Table 1",), {"small": (str(tmp_path / "points.yaml"), "tiny")})
    own = Listed({"points": entry}, listed().coverage)
    monkeypatch.setattr(reproductions, "listed", lambda: own)
    return tmp_path


def test_every_published_row_is_printed_with_a_verdict(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--store", str(points / "store"), "--out", str(points / "out"), "--quiet"]
    assert run(app, ["reproduce", "points", *where, "--dry-run"]) == 0
    assert not (points / "out").exists()
    capsys.readouterr()
    assert run(app, ["reproduce", "points", *where]) == 0
    told = capsys.readouterr().out
    assert "0.915" in told
    assert "not run" in told  # MixCon itself was not asked for
    assert "cannot tell    vanilla: 91.5% of test points right" in told
    assert (points / "out" / "0" / "report.html").exists()
    assert run(app, ["reproduce", "points", *where, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {(row["row"], row["metric"]): row for row in document["figures"]}
    assert len(rows) == 10  # five rows of table 1, accuracy in training and in testing
    found = rows["vanilla", "accuracy"]
    assert found["published"] == 0.915
    assert 0 < found["obtained"]["value"] <= 1
    assert {row["verdict"] for row in rows.values()} == {"cannot tell", "not run"}
    assert document["claims"][0]["verdict"] == "cannot tell"
    assert "3 are the least" in document["claims"][0]["reason"]


def test_what_is_missing_is_one_line(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["reproduce", "points", "--scale", "paper"]) == 2
    assert "it has: small" in capsys.readouterr().err
    assert run(app, ["reproduce", "table9"]) == 2
    assert "points" in capsys.readouterr().err
