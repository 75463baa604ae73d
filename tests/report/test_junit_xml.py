"""JUnit: one case a target and attack, and red exactly when the exit code is not 0."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from leakscope.core.reports import AuditReport
from leakscope.core.words import VERDICTS
from leakscope.report import junit

from .sample import many, sample, with_verdict


def parsed(audit: AuditReport) -> ElementTree.Element:
    suite = ElementTree.fromstring(junit(audit).encode()).find("testsuite")
    assert suite is not None
    return suite


def red(suite: ElementTree.Element) -> tuple[int, int]:
    return len(suite.findall("testcase/failure")), len(suite.findall("testcase/error"))


@pytest.mark.parametrize(
    ("verdict", "expected"), [("measured", (0, 0)), ("pass", (0, 0)), ("fail", (1, 0)), ("inconclusive", (0, 1))]
)
def test_the_colour_is_the_verdicts(verdict: str, expected: tuple[int, int]) -> None:
    audit = with_verdict(sample()[0], verdict)
    suite = parsed(audit)
    assert red(suite) == expected
    assert (int(suite.get("failures", -1)), int(suite.get("errors", -1))) == expected
    assert int(suite.get("skipped", -1)) == 1  # the canary was not run
    assert int(suite.get("tests", -1)) == len(suite.findall("testcase")) == 12 + 3 + 1
    for found in suite.findall("testcase/failure") + suite.findall("testcase/error"):
        assert found.get("message") == audit.sentence


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("passed", [True, False, None])
def test_red_exactly_when_the_exit_code_is_not_zero(verdict: str, passed: bool | None) -> None:
    audit = with_verdict(sample()[0], verdict)
    audit = replace(audit, controls=tuple(replace(control, passed=passed) for control in audit.controls))
    assert (sum(red(parsed(audit))) > 0) == (audit.exit_code != 0)


def test_cases_are_distinct_and_carry_scores() -> None:
    suite = parsed(many(24, 1, 28)[0])
    names = [(case.get("classname"), case.get("name")) for case in suite.findall("testcase")]
    assert len(names) == len(set(names)) == 24 + 3 + 1
    told = suite.findtext("testcase/system-out") or ""
    assert "leak: 0.982 (0.970 to 0.994), worst 0.999" in told


def test_what_xml_cannot_hold_is_replaced() -> None:
    audit = replace(with_verdict(sample()[0], "fail"), sentence="a\x00b\x1b[31m <&> \ud800 \U0001f600")
    failure = parsed(audit).find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "a\ufffdb\ufffd[31m <&> \ufffd \U0001f600"
