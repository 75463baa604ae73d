"""Text of others in every output: no markup, no escape sequence, no formula comes of it, whatever it says."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console

from leakscope import terminal as shown
from leakscope.core import escaping
from leakscope.core.results import TargetRecord
from leakscope.experiments.card import card
from leakscope.models._exported import WEIGHTS
from leakscope.report import junit, render_html, sarif
from leakscope.report.results import Entry
from leakscope.report.summary import markdown as summary
from tests.report.board import entry, keep, text
from tests.report.sample import sample, target_record

#: Signs of Markdown, HTML, rich, terminals, LaTeX, spreadsheets, and letters to put between them.
SIGNS = "<>&\"'`*_[](){}|\\/#!~$%^=+-@:;.\n\r\t\x00\x1b\x07\x7f\x9b\u202e\u2028\ud800 ab1é中"
NASTY = [
    "<script>alert(1)</script>", "`</code><img src=x onerror=alert(1)>`", "[/x]", "[bold]", "\x1b]0;t\x07\x1b[2J",
    "![a](javascript:alert(1))", "[a](javascript:alert(1))", "<a href='x'>", "|x|", "</details>", "``` \n# h", "=1+1",
    "&lt;b&gt;", "\\", "\\`", "a\n\n# b", "${{ secrets.X }}", "<!--", "]]>", "\u202egnp.exe", "\ud800",
]  # fmt: skip
#: All of them at once, and those that matter at an end alone.
MARKS = [" ".join(NASTY), "=1+1", "\\", "\\`", "\ud800"]
hostile = st.sampled_from(NASTY) | st.text(SIGNS, min_size=1, max_size=30)
READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
FEW = settings(max_examples=60)


def hidden(text: str) -> list[str]:
    return [sign for sign in text if sign != "\n" and unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


def structure(text: str) -> list[tuple[str, str]]:
    """The marks of a Markdown text: kinds of its tokens, with what HTML and links say."""

    def flat(tokens: list[Token]) -> list[Token]:
        return [inner for token in tokens for inner in (token, *flat(token.children or []))]

    tokens = flat(READER.parse(text))
    kept = ("html_block", "html_inline", "link_open", "image")
    return [(t.type, t.content if t.type in kept else "") for t in tokens if t.type not in {"text", "text_special"}]


@FEW
@given(text=hostile)
def test_markdown_shows_a_text_as_itself(text: str) -> None:
    told = escaping.markdown(text)
    assert not hidden(told)
    assert structure(f"x {told} x") == structure("x y x")
    assert structure(f"| a |\n| --- |\n| x {told} |") == structure("| a |\n| --- |\n| x |")
    span = escaping.markdown_code(text)
    assert not hidden(span)
    assert structure(f"| a |\n| --- |\n| `x {span} x` |") == structure("| a |\n| --- |\n| `x` |")
    block = escaping.markdown_block(text)
    assert structure(f"{block}\n\n# b") == structure("```\nx\n```\n\n# b")


@FEW
@given(text=hostile)
def test_terminals_and_json_show_what_is_hidden(text: str) -> None:
    assert not hidden(escaping.terminal(text))
    told = escaping.json_text({"a": text})
    assert not hidden(told)
    assert json.loads(told) == {"a": text}


def spoilt(mark: str) -> Any:
    """An audit whose names end with the mark."""
    audit, pictures = sample()
    target, *others = audit.targets
    record = replace(target.record, defense=replace(target.record.defense, label="d" + mark), cut="c" + mark)
    results = tuple(
        replace(result, attack=replace(result.attack, label="a" + mark)) if result.target == record.key else result
        for result in audit.results
    )
    flags = tuple(replace(flag, where="w" + mark) for flag in audit.flags)
    return replace(
        audit, targets=(replace(target, record=record), *others), results=results, flags=flags, command="c" + mark,
        sentence="s" + mark, reasons=("r" + mark,), data=replace(audit.data, name="n" + mark),
    ), pictures  # fmt: skip


@pytest.mark.parametrize("mark", MARKS)
def test_an_audit_in_every_form(mark: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (audit, pictures), (plain, _) = spoilt(mark), spoilt("zzz")
    told = summary(audit)
    assert not hidden(told)
    assert structure(told) == structure(summary(plain))
    page = render_html(audit, pictures)
    assert not hidden(page)
    assert "<script>alert" not in page  # its tags are compared in tests/report/test_escaping.py
    assert not hidden(escaping.json_text(sarif(audit)))
    junit(audit).encode()
    shown.print_audit(audit, tmp_path)
    printed = capsys.readouterr().out
    assert not hidden(printed)
    assert printed.count("\n") >= len(audit.results)


@pytest.mark.parametrize("mark", MARKS)
def test_a_leaderboard_in_every_form(mark: str, tmp_path: Path) -> None:
    def board(mark: str, form: str) -> str:
        made = [entry("gaussian", "ridge", seed, 0.5, 0.9, label="g" + mark, command=mark, cut="c") for seed in (0, 1)]
        entries = [
            Entry(own.target, replace(own.result, attack=replace(own.result.attack, label=mark))) for own in made
        ]
        return text(entries, form, keep(tmp_path / "s", []), tmp_path / "x")

    told = board(mark, "md")
    assert not hidden(told)
    harmless = board("zzz", "md")
    assert [kind for kind, _ in structure(told)] == [kind for kind, _ in structure(harmless)]
    assert not hidden(board(mark, "tex"))
    rows = list(csv.reader(io.StringIO(board(mark, "csv"))))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not [cell for row in rows[1:] for cell in row if cell[:1] in {"=", "+", "@"} or hidden(cell)]


@pytest.mark.parametrize("mark", MARKS)
def test_the_card_of_an_exported_target(mark: str) -> None:
    def told(mark: str) -> str:
        record: TargetRecord = target_record("ab" * 12, "gaussian", "c" + mark, 0, 0.9, data="d" + mark)
        record = replace(
            record, defense=replace(record.defense, label="g" + mark), model=replace(record.model, label="m" + mark),
            identity={"training": {"epochs": 1}, "weights": None},
        )  # fmt: skip
        return card(record, {WEIGHTS: "00"}, [], "v" + mark).partition("\n---\n")[2]

    assert not hidden(told(mark))
    assert structure(told(mark)) == structure(told("zzz"))


def test_bars_and_lists_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission called `[/x]` broke every later audit."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(shown, "_ERROR", screen)
    from leakscope.core import progress

    with shown.following(quiet=False):
        progress.say("[/x] \x1b]0;t\x07")
        with progress.stage("[/x] [bold]", 2) as bar:
            bar.advance(1, loss=0.1)
    assert isinstance(screen.file, io.StringIO)
    assert "[/x] \\x1b]0;t\\x07" in screen.file.getvalue()
