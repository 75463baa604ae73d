"""Gate, evidence and verdict: a found leak fails, a pass needs every flag quiet."""

from __future__ import annotations

import pytest

from leakscope.auditing.verdict import Gate, evidence, judge
from leakscope.core.errors import UsageError
from leakscope.core.results import Direction, Flag
from leakscope.core.words import FlagId

from .results import report

DIRECTIONS: dict[str, Direction] = {"leak": "high", "ssim": "high", "mse": "low"}
FOUND = "{share} of {target}{twin}"
NOTHING = evidence({})


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


def test_a_gate_judges_the_pessimistic_end_of_the_interval() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    assert judge([report(0.15, 0.19)], [], NOTHING, gate, FOUND).verdict == "pass"
    assert judge([report(0.15, 0.25)], [], NOTHING, gate, FOUND).verdict == "fail"
    assert (
        judge([report(0.1, 0.1, mse=0.1)], [], NOTHING, Gate.parse("mse>=0.095", DIRECTIONS), FOUND).verdict == "fail"
    )


def test_undefended_twins_are_compared_with_but_not_judged() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    assert judge([report(0.9, 0.95, "none"), report(0.1, 0.15)], [], NOTHING, gate, FOUND).verdict == "pass"
    assert judge([report(0.9, 0.95, "none")], [], NOTHING, gate, FOUND).verdict == "fail"


def test_a_blocking_flag_turns_pass_into_inconclusive_and_leaves_fail_alone() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    flags = [Flag(FlagId.NOT_CONVERGED, "decoder")]
    assert judge([report(0.1, 0.15)], flags, NOTHING, gate, FOUND).verdict.exit_code == 4
    assert judge([report(0.5, 0.6)], flags, NOTHING, gate, FOUND).verdict.exit_code == 1
    warned = [Flag(FlagId.LINEAR_BEATS_STRONG, "decoder")]
    assert judge([report(0.1, 0.15)], warned, NOTHING, gate, FOUND).verdict.exit_code == 0


def test_a_failed_control_is_inconclusive_even_without_a_gate() -> None:
    flags = [Flag(FlagId.CONTROL_FAILED, "decoder")]
    assert judge([report(0.1, 0.15)], flags, NOTHING, None, FOUND).verdict == "inconclusive"
    assert judge([report(0.1, 0.15)], [], NOTHING, None, FOUND).verdict == "measured"


def test_a_level_must_be_reached_for_a_pass() -> None:
    gate = Gate.parse("leak<=0.2 at E1", DIRECTIONS)
    reached = evidence({"E0": [("one attack", True)], "E1": [("three seeds", True)]})
    assert judge([report(0.1, 0.15)], [], reached, gate, FOUND).verdict == "pass"
    assert judge([report(0.1, 0.15)], [], NOTHING, gate, FOUND).verdict == "inconclusive"


def test_a_level_stands_on_those_below_it() -> None:
    conditions = {"E0": [("a", True)], "E1": [("b", False)], "E2": [("c", True)]}
    found = evidence(conditions)
    assert (found.level, found.met, found.missing) == ("E0", ("a", "c"), ("E1: b",))
