"""What a notebook shows of an audit."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import leakscope
from leakscope.core import progress
from leakscope.experiments.finished import Audit
from tests.report.sample import sample


def _audit() -> Audit:
    report, pictures = sample()
    return Audit(report, {name: torch.from_numpy(array) for name, array in pictures.items()})


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_notebook_shows_verdict_targets_and_pictures() -> None:
    audit = _audit()
    text = audit._repr_html_()
    tags = _Tags(text)
    assert tags.open == []
    assert tags.seen.count("tr") == 1 + len(audit.report.targets)
    assert tags.seen.count("img") == 2 * len(audit.report.targets)
    assert not {"script", "style", "iframe"} & set(tags.seen)
    assert "0.982" in text
    assert "0.970 to 0.994" in text


def test_what_the_audit_says_stays_text() -> None:
    audit = _audit()
    hostile = Audit(replace(audit.report, sentence="<script>alert(1)</script>"), audit.images)
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()


def test_the_plot_has_every_target_where_it_belongs() -> None:
    audit = _audit()
    (axes,) = audit.plot().axes
    drawn = {tuple(np.round(line[0].get_xydata()[0], 6)) for line in axes.containers}
    report = audit.report
    wanted = {
        (round(target.record.accuracy or 0, 6), round(report.result(target.strongest or "").leak, 6))
        for target in report.targets
    }
    assert drawn == wanted
    assert any(line.get_ydata()[0] == 0.2 for line in axes.lines if len(set(line.get_ydata())) == 1), "the limit"


def test_summary_and_frame() -> None:
    audit = _audit()
    assert audit.summary().startswith("# Leakscope: Fail")
    pytest.importorskip("pandas")
    assert len(audit.to_frame()) == len(audit.results)


@pytest.mark.parametrize(
    ("shell", "asked", "shown"),
    [("ZMQInteractiveShell", None, True), ("TerminalInteractiveShell", None, False), ("", True, True),
     ("ZMQInteractiveShell", False, False)],
)  # fmt: skip
def test_progress_is_shown_in_notebooks_and_where_it_is_asked_for(
    shell: str, asked: bool | None, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel is told by the class of its shell, as IPython names it."""
    running = type(shell, (), {})() if shell else None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: running))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    leakscope.audit(
        net, "digits", cut="1", progress=asked, attacks=["ridge"], victims=4, metrics=["leak"],
        splits={"private": 60, "heldout": 40, "public": 60},
    )  # fmt: skip
    assert (re.search(r"audit: (\d+) of \1 jobs", capsys.readouterr().err) is not None) is shown


def test_one_line_is_written_again_and_again() -> None:
    written = io.StringIO()
    with progress.listening(progress.Inline(written.write)), progress.stage("audit", 3) as bar:
        with progress.stage("inner", 9) as inner:
            inner.advance()
        bar.advance(2)
        bar.advance()
    lines = re.split(r"[\r\n]", written.getvalue().strip())
    assert [line.split(",")[0] for line in lines] == ["audit: 2 of 3 jobs", "audit: 3 of 3 jobs"]
