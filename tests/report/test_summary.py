"""Markdown: a table that stays a table whatever the names in it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from markdown_it import MarkdownIt

from leakscope.report import markdown
from leakscope.report.words import VERDICTS

from .sample import sample, with_verdict


def html(audit: dict[str, Any]) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(markdown(audit)))


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_opens_with_the_verdict(verdict: str) -> None:
    audit = with_verdict(sample()[0], verdict)
    text = markdown(audit)
    assert text.splitlines()[0] == f"# Leakscope: {VERDICTS[verdict][0]}"
    assert audit["sentence"] in text
    assert ("Gate `" in text) == (verdict != "measured")


def test_targets_floors_controls_and_flags_are_there() -> None:
    rendered = html(sample()[0])
    assert rendered.count("<table>") == 2
    assert rendered.count("<tr>") == (1 + 4) + (1 + 3)
    for part in ("97.4\u00a0%", "0.982", "0.970 to 0.994", "0.993", "Canary: not run.", "not-converged", "mnist5k"):
        assert part in rendered


def test_names_cannot_break_out() -> None:
    audit = copy.deepcopy(sample()[0])
    for target in audit["targets"]:
        target["defense"] = "a|b `c` <img src=x> [d](javascript:e) *f*\n# g"
    audit["command"] = "echo '```' && true"
    audit["flags"][0]["where"] = "<script>x</script>"
    rendered = html(audit)
    assert rendered.count("<tr>") == 9
    for tag in ("<img", "<script", "<a ", "<em>"):
        assert tag not in rendered
    assert "echo '```' &amp;&amp; true" in rendered
    assert "a|b `c` &lt;img src=x&gt; [d](javascript:e) *f* # g" in rendered


def test_no_flags_are_told_as_none() -> None:
    audit = copy.deepcopy(sample()[0])
    audit["flags"] = []
    assert "None raised." in markdown(audit)
