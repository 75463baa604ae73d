"""Markdown: a table that stays a table whatever the names in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from leakscope.core.reports import AuditReport
from leakscope.core.results import Flag
from leakscope.core.words import VERDICTS, FlagId, Verdict
from leakscope.report import markdown
from leakscope.report.flags import WEAKER, causes

from .sample import sample, with_verdict


def html(audit: AuditReport) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(markdown(audit)))


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_opens_with_the_verdict(verdict: str) -> None:
    audit = with_verdict(sample()[0], verdict)
    text = markdown(audit)
    assert text.splitlines()[0] == f"# Leakscope: {VERDICTS[Verdict(verdict)][0]}"
    assert audit.sentence in text
    assert ("Gate `" in text) == (verdict != "measured")


def test_targets_floors_controls_and_flags_are_there() -> None:
    rendered = html(sample()[0])
    assert rendered.count("<table>") == 2
    assert rendered.count("<tr>") == (1 + 4) + (1 + 2), "four targets, two floors"
    for part in ("97.4\u00a0%", "0.982", "0.970 to 0.994", "0.993", "Canary: not run.", "not-converged", "mnist5k"):
        assert part in rendered


def test_the_oracle_is_no_floor() -> None:
    """It looks at the victim; the table is headed: without observing the features."""
    rows = [line for line in markdown(sample()[0]).splitlines() if "Oracle" in line]
    assert rows == [
        "Oracle: the nearest public picture, chosen by looking at the victim: leak 0.118, ssim 0.502. "
        "No attacker can look, so this is no floor."
    ]


def test_names_cannot_break_out() -> None:
    audit = sample()[0]
    label = "a|b `c` <img src=x> [d](javascript:e) *f*\n# g"
    targets = []
    for target in audit.targets:
        defense = replace(target.record.defense, label=label, kinds=("a",))
        targets.append(replace(target, record=replace(target.record, defense=defense)))
    flags = (replace(audit.flags[0], where="<script>x</script>"), *audit.flags[1:])
    rendered = html(replace(audit, targets=tuple(targets), command="echo '```' && true", flags=flags))
    assert rendered.count("<tr>") == 8
    for tag in ("<img", "<script", "<a ", "<em>"):
        assert tag not in rendered
    assert "echo '```' &amp;&amp; true" in rendered
    assert "a|b `c` &lt;img src=x&gt; [d](javascript:e) *f* # g" in rendered


def test_no_flags_are_told_as_none() -> None:
    assert "None raised." in markdown(replace(sample()[0], flags=()))


def test_flags_are_told_once_for_each_cause() -> None:
    lines = [line for line in markdown(sample()[0]).splitlines() if line.startswith("- `")]
    assert [line.split("`")[1] for line in lines] == ["not-converged", "weaker-attacks"]
    assert lines[1].count("search on target 3, seed 0") == lines[1].count("linear-beats-strong") / 2 == 1


def test_an_inconclusive_audit_still_says_what_was_measured() -> None:
    text = markdown(with_verdict(sample()[0], "inconclusive"))
    assert "Measured: at least 62\u00a0%" in text
    assert "No statement" not in text
    failed = replace(sample()[0].flags[0], id=FlagId.NEGATIVE_CONTROL)
    assert "Measured: at least" not in markdown(replace(sample()[0], flags=(failed,))), "its figures say nothing"


def test_one_failed_attack_beside_a_successful_one_is_one_note() -> None:
    audit, _ = sample()
    third = audit.targets[3].record.key
    told = causes(audit)
    assert [group.id for group in told] == [FlagId.NOT_CONVERGED, WEAKER], "what blocks stands alone"
    assert [line.partition(":")[0] for line in told[1].where] == [f"search on target {n}, seed 0" for n in (3, 4)]
    # The same flags on the attack that counts, or one that blocks, are told by themselves.
    best = max(audit.of_target(third), key=lambda result: result.leak)
    flags = (Flag(FlagId.LINEAR_BEATS_STRONG, "decoder on target 4", best.key), *audit.flags)
    assert FlagId.LINEAR_BEATS_STRONG in [group.id for group in causes(replace(audit, flags=flags))]
    weak = min(audit.of_target(third), key=lambda result: result.leak)
    blocking = Flag(FlagId.CONTROL_FAILED, "search", weak.key)
    assert [group.id for group in causes(replace(audit, flags=(blocking,)))] == [FlagId.CONTROL_FAILED]
