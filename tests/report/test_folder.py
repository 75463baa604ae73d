"""From a folder to four files: atomic, repeatable, without PyTorch, and with one line when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from leakscope.core.errors import UsageError
from leakscope.core.results import to_json
from leakscope.core.words import Verdict
from leakscope.report import junit, markdown, read, render_html, sarif, write
from leakscope.report.page import render_onepage

from .sample import sample, save

NAMES = ["report.html", "onepage.html", "summary.md", "junit.xml", "results.sarif"]


def test_five_files_with_what_the_functions_return(tmp_path: Path) -> None:
    audit, pictures = sample()
    written = write(save(tmp_path, audit, pictures))
    assert [path.name for path in written] == NAMES
    texts = [path.read_text(encoding="utf-8") for path in written]
    drawn = [render_html(audit, pictures), render_onepage(audit, pictures), markdown(audit), junit(audit)]
    assert texts[:4] == drawn
    assert json.loads(texts[4]) == sarif(audit, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*NAMES, "audit.json", "pictures.safetensors"])
    assert [path.read_text(encoding="utf-8") for path in write(tmp_path)] == texts


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    audit, pictures = sample()
    read_audit, read_pictures = read(save(tmp_path, audit, pictures))
    assert read_audit == audit
    assert read_pictures.keys() == pictures.keys()


def test_a_verdict_with_the_exit_code_of_another_is_refused(tmp_path: Path) -> None:
    audit, pictures = sample()
    save(tmp_path, replace(audit, verdict=Verdict.INCONCLUSIVE), pictures)  # with the exit code of a failed gate
    with pytest.raises(UsageError, match="exit code 1, which is not that of inconclusive; run the audit again"):
        read(tmp_path)


def test_an_audit_without_pictures_needs_no_file_of_them(tmp_path: Path) -> None:
    audit = replace(sample()[0], pictures={})
    (tmp_path / "audit.json").write_text(json.dumps(to_json(audit)), encoding="utf-8")
    assert read(tmp_path)[1] == {}
    assert len(write(tmp_path)) == 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("audit.json", None, "no audit.json in"), ("audit.json", b"{", "cannot read"),
     ("audit.json", b"\xff", "cannot read"),
     ("audit.json", b"[]", "has schema None"), ("audit.json", b'{"schema": "leakscope/audit/9"}', "leakscope/audit/9"),
     ("audit.json", b'{"schema": "leakscope/audit/1", "results": []}',
      "'leakscope/audit/1', this version .* run the audit again"),
     ("audit.json", b'{"schema": "leakscope/audit/2"}', "verdict: Field required.*make it again"),
     ("pictures.safetensors", b"\x08\x00\x00", "cannot read"), ("pictures.safetensors", None, "lacks the pictures")],
)  # fmt: skip
def test_what_cannot_be_drawn_is_one_line_and_writes_nothing(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    save(tmp_path, *sample())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=message) as caught:
        write(tmp_path)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(save(tmp_path, *sample()))
    before = (tmp_path / "report.html").read_bytes()
    (tmp_path / "audit.json").write_text(
        json.dumps(to_json(replace(sample()[0], sentence="Another."))), encoding="utf-8"
    )

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("leakscope.report.folder.os.replace", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*"))


def test_a_report_is_drawn_without_torch() -> None:
    code = "import sys, leakscope.report; print(sorted({'torch', 'torchvision', 'matplotlib'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
