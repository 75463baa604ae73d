"""Values that no option can have: exit code 2, one line, and no store is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.files import read_json, require_file
from leakscope.runners.devices import chosen

AUDIT = ["audit", "--data", "digits", "--dry-run"]
REFUSED = [
    *(["--threads", count] for count in ("0", "-1", "100000")),
    *(["--workers", count] for count in ("0", "-1", "100000")),
    *(["--gate", gate] for gate in ("", "leak<=1.2.3", "leak<=.", "leak<=nan", "leak<=inf", "leak<=1e999", "x<=1")),
    *(["--set", text] for text in ("threat.queries=-5", "defenses=[]", "weights=/dev/zero", "split_index=/dev/zero",
                                   "weights=/", "split_index=/", "=5", "a..b=5", "data=[]", "model={}",
                                   "model={kind: []}", "model.kind={}", "training.learning_rate=1e400",
                                   "splits.private=1e400", "evaluator.training.learning_rate=1e400")),
    *(["--resize", side] for side in ("0", "2000000")),
    ["--device", "meta"], ["--device", "gpu7"], ["--victims", "-5"], ["--model", "mlp:widths=[1000000000000]"],
    ["--model", "/dev/null:build"], ["--data", "npz:/dev/zero"], ["--data", "folder:a\0b"], ["--weights", "a\0b"],
]  # fmt: skip


@pytest.mark.parametrize("extra", REFUSED, ids=lambda words: " ".join(words).replace("\0", "0"))
def test_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str]) -> None:
    words = [*AUDIT, *extra] if extra[0] != "--data" else ["audit", "--dry-run", *extra]
    assert run(app, [*words, "--no-isolate", "--store", str(tmp_path / "store")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("leakscope: ")
    assert told.count("\n") == 1
    assert told.rstrip("\n").isprintable()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "words",
    [["report", "a\0b"], ["bench", "a\0b"], ["audit", "a\0b"], ["audit", "\udcff.yaml"], ["init", "a\0b"],
     ["blind", "x", "--answers", "/dev/zero"], ["submit", "/dev/zero", "--card", "/dev/zero"],
     ["show", "../../x"], ["reproduce", "../x"], ["audit", "x" * 5000]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_names_that_are_no_names(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(app, words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "words",
    [["show", "abcd"], ["status"], ["export", "abcd"], ["store", "size"], ["report", "--group", "defense"]],
    ids=lambda words: words[0],
)
def test_who_only_looks_makes_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """An empty variable in a script (`--store "$STORE"`) is the folder one stands in."""
    (tmp_path / "photo.png").touch()
    for place in (tmp_path, tmp_path / "photo.png", tmp_path / "absent"):
        assert run(app, [*words, "--store", str(place)]) == 2
        assert "no store at" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photo.png"]


@pytest.mark.parametrize("data", ["data: [{}]\nmodels: [mlp]", "data: [digits]\nmodels: [{}]"])
def test_a_grid_whose_entries_name_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: str) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(data)
    assert run(app, ["bench", str(path), "--dry-run", "--store", str(tmp_path / "s")]) == 2
    assert "names no" in capsys.readouterr().err


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for refused in (path, tmp_path, Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(UsageError):
            require_file(refused)
    assert require_file(tmp_path / "absent") == tmp_path / "absent"


def test_a_reader_who_leaves_is_not_told_of_their_code() -> None:
    """`leakscope audit --help | head -1`."""
    command = [sys.executable, "-m", "leakscope", "audit", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("text", [b"[" * 200_000, b"\xff", b"{", b"", b"NaN x"])
def test_json_that_is_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match="make it again") as caught:
        read_json(path, "make it again")
    assert "\n" not in str(caught.value)


def test_no_device_without_numbers() -> None:
    with pytest.raises(UsageError, match="take --device cpu"):
        chosen("meta")
