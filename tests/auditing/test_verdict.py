"""Gate, evidence and verdict: a found leak fails, a pass needs every flag quiet."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from leakscope.auditing import verdict
from leakscope.auditing.verdict import Gate, Judgement, evidence
from leakscope.core.errors import UsageError
from leakscope.core.reports import EvidenceReport, TargetReport
from leakscope.core.results import Direction, Flag
from leakscope.core.words import FlagId

from .results import group, report

DIRECTIONS: dict[str, Direction] = {"leak": "high", "ssim": "high", "mse": "low", "exposed": "high"}
FOUND = "{share} of {target}{twin}"
NOTHING = evidence({})


def judge(
    targets: Sequence[TargetReport], flags: Sequence[Flag], reached: EvidenceReport, gate: Gate | None, exposed: int = 0
) -> Judgement:
    return verdict.judge(targets, [group(own, exposed) for own in targets], flags, reached, gate, FOUND)


def test_a_gate_reads_metric_limit_and_level() -> None:
    gate = Gate.parse(" ssim <= 0.5 at e1 ", DIRECTIONS)
    assert (gate.metric, gate.limit, gate.level) == ("ssim", 0.5, "E1")


@pytest.mark.parametrize(
    ("text", "message"),
    [("leak", "cannot read"), ("leek<=1", "computed metrics"), ("leak>=0.1", "reward"), ("mse<=0.1", "reward")],
)
def test_a_gate_that_cannot_mean_anything_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Gate.parse(text, DIRECTIONS)


def test_a_limit_broken_by_the_mean_fails_and_one_reached_by_its_interval_alone_cannot_tell() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    assert judge([report(0.15, 0.19)], [], NOTHING, gate).verdict == "pass"
    assert judge([report(0.25, 0.35)], [], NOTHING, gate).verdict == "fail"
    undecided = judge([report(0.15, 0.25)], [], NOTHING, gate)
    assert undecided.verdict == "inconclusive"
    # The end is twice as far from the mean as the limit is: four times the eight victims.
    assert undecided.gate is not None
    assert undecided.gate.victims_needed == 32
    assert "32 victims" in undecided.sentence
    mse = Gate.parse("mse>=0.095", DIRECTIONS)
    assert judge([report(0.1, 0.1, mse=0.1)], [], NOTHING, mse).verdict == "inconclusive"
    assert judge([report(0.1, 0.1, mse=0.09)], [], NOTHING, mse).verdict == "fail"


def test_a_gate_that_rounding_could_turn_says_so() -> None:
    """Scores under one key differ by up to 5e-6 between numbers of threads."""
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    for mean, high, near in (
        (0.15, 0.2 - 4e-6, True), (0.2 + 4e-6, 0.3, True), (0.2 - 4e-6, 0.3, True), (0.15, 0.199, False),
        (0.21, 0.3, False),
    ):  # fmt: skip
        told = judge([report(mean, high)], [], NOTHING, gate)
        assert any("number of threads" in reason for reason in told.reasons) is near, (mean, high)


def test_the_exposed_share_can_be_limited() -> None:
    """None of 64 exposed bounds the share below 4.6 %, one of 64 does not (Clopper and Pearson)."""
    gate = Gate.parse("exposed<=0.05", DIRECTIONS)
    assert judge([report(0.0, 0.01)], [], NOTHING, gate).verdict == "pass"
    assert judge([report(0.0, 0.01)], [], NOTHING, gate, exposed=1).verdict == "inconclusive"
    assert judge([report(0.0, 0.01)], [], NOTHING, gate, exposed=8).verdict == "fail"
    strict = judge([report(0.0, 0.01)], [], NOTHING, Gate.parse("exposed<=0.01", DIRECTIONS))
    assert strict.gate is not None
    assert strict.gate.victims_needed == 299  # 0.99**299 < 0.05


def test_undefended_twins_are_compared_with_but_not_judged() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    assert judge([report(0.9, 0.95, "none"), report(0.1, 0.15)], [], NOTHING, gate).verdict == "pass"
    assert judge([report(0.9, 0.95, "none")], [], NOTHING, gate).verdict == "fail"


def test_a_blocking_flag_turns_pass_into_inconclusive_and_leaves_fail_alone() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    flags = [Flag(FlagId.NOT_CONVERGED, "decoder")]
    assert judge([report(0.1, 0.15)], flags, NOTHING, gate).verdict.exit_code == 4
    assert judge([report(0.5, 0.6)], flags, NOTHING, gate).verdict.exit_code == 1
    warned = [Flag(FlagId.LINEAR_BEATS_STRONG, "decoder")]
    assert judge([report(0.1, 0.15)], warned, NOTHING, gate).verdict.exit_code == 0


def test_a_failed_control_is_inconclusive_even_without_a_gate() -> None:
    flags = [Flag(FlagId.CONTROL_FAILED, "decoder")]
    assert judge([report(0.1, 0.15)], flags, NOTHING, None).verdict == "inconclusive"
    assert judge([report(0.1, 0.15)], [], NOTHING, None).verdict == "measured"


def test_a_level_must_be_reached_for_a_pass() -> None:
    gate = Gate.parse("leak<=0.2 at E1", DIRECTIONS)
    reached = evidence({"E0": [("one attack", True)], "E1": [("three seeds", True)]})
    assert judge([report(0.1, 0.15)], [], reached, gate).verdict == "pass"
    assert judge([report(0.1, 0.15)], [], NOTHING, gate).verdict == "inconclusive"


def test_a_level_stands_on_those_below_it() -> None:
    conditions = {"E0": [("a", True)], "E1": [("b", False)], "E2": [("c", True)]}
    found = evidence(conditions)
    assert (found.level, found.met, found.missing) == ("E0", ("a", "c"), ("E1: b",))
