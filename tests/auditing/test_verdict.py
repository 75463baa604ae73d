"""Gate, evidence and verdict: a found leak fails, a pass needs every flag quiet."""

from __future__ import annotations

from typing import Any

import pytest

from leakscope.auditing.flags import RULES, Flag, across, collapsed, of_result, still_falling
from leakscope.auditing.verdict import Gate, evidence, judge
from leakscope.core.errors import UsageError

DIRECTIONS = {"leak": "high", "ssim": "high", "mse": "low"}


def _target(mean: float, high: float, defense: str = "gaussian", mse: float = 0.1) -> dict[str, Any]:
    leak = {"mean": mean, "low": 2 * mean - high, "high": high, "worst": high}
    return {
        "model": "net", "defense": defense, "cut": "c",
        "worst_case": {"leak": leak, "mse": {"mean": mse, "low": mse - 0.01, "high": mse + 0.01, "worst": 0.0}},
    }  # fmt: skip


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
    assert judge([_target(0.15, 0.19)], [], NOTHING, gate).status == "pass"
    assert judge([_target(0.15, 0.25)], [], NOTHING, gate).status == "fail"
    assert judge([_target(0.1, 0.1, mse=0.1)], [], NOTHING, Gate.parse("mse>=0.095", DIRECTIONS)).status == "fail"


def test_undefended_twins_are_compared_with_but_not_judged() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    assert judge([_target(0.9, 0.95, "none"), _target(0.1, 0.15)], [], NOTHING, gate).status == "pass"
    assert judge([_target(0.9, 0.95, "none")], [], NOTHING, gate).status == "fail"


def test_a_blocking_flag_turns_pass_into_inconclusive_and_leaves_fail_alone() -> None:
    gate = Gate.parse("leak<=0.2", DIRECTIONS)
    flags = [Flag("not-converged", "decoder").as_dict()]
    assert judge([_target(0.1, 0.15)], flags, NOTHING, gate).exit_code == 4
    assert judge([_target(0.5, 0.6)], flags, NOTHING, gate).exit_code == 1
    warned = [Flag("linear-beats-strong", "decoder").as_dict()]
    assert judge([_target(0.1, 0.15)], warned, NOTHING, gate).exit_code == 0


def test_a_failed_control_is_inconclusive_even_without_a_gate() -> None:
    flags = [Flag("control-failed", "decoder").as_dict()]
    assert judge([_target(0.1, 0.15)], flags, NOTHING, None).status == "inconclusive"
    assert judge([_target(0.1, 0.15)], [], NOTHING, None).status == "measured"


def test_a_level_must_be_reached_for_a_pass() -> None:
    gate = Gate.parse("leak<=0.2 at E1", DIRECTIONS)
    reached = evidence({"E0": [("one attack", True)], "E1": [("three seeds", True)]})
    assert judge([_target(0.1, 0.15)], [], reached, gate).status == "pass"
    assert judge([_target(0.1, 0.15)], [], NOTHING, gate).status == "inconclusive"


def test_a_level_stands_on_those_below_it() -> None:
    conditions = {"E0": [("a", True)], "E1": [("b", False)], "E2": [("c", True)]}
    found = evidence(conditions)
    assert (found.level, found.met, found.missing) == ("E0", ["a", "c"], ["E1: b"])


def _row(key: str, attack: str, leak: float, **notes: Any) -> dict[str, Any]:
    return {"key": key, "attack": attack, "metrics": {"leak": {"mean": leak}}, "notes": notes}


def test_results_accuse_each_other() -> None:
    rows = [_row("r", "ridge", 0.8), _row("d", "decoder:steps=1", 0.3), _row("s", "search", 0.9)]
    assert across(rows, {"search"}) == {"d": ["linear-beats-strong"]}
    rows[2] = _row("s", "search", 0.1)
    assert across(rows, {"search"})["s"] == ["linear-beats-strong", "black-box-beats-white-box"]


def test_a_steep_end_is_not_convergence() -> None:
    assert still_falling([1.0, 0.8, 0.6, 0.4, 0.3, 0.2])
    assert not still_falling([1.0, 0.5, 0.3, 0.21, 0.205, 0.2])
    falling = [1.0, 0.8, 0.6, 0.4, 0.3, 0.2]
    assert of_result(_row("d", "decoder", 0.5, curve=falling), random_release=False, averages_noise=False) == [
        "not-converged"
    ]
    assert of_result(_row("d", "decoder", 0.99, curve=falling), random_release=False, averages_noise=False) == []


def test_notes_become_flags_that_are_documented() -> None:
    row = _row("s", "search", 0.0, diverged=0.1, zero_gradient=1.0)
    raised = of_result(row, random_release=True, averages_noise=False)
    assert raised == ["attack-diverged", "zero-gradient", "noise-not-averaged"]
    assert set(raised) <= set(RULES)


def test_a_useless_target_is_not_a_private_one() -> None:
    assert collapsed(0.11, None, classes=10)
    assert collapsed(0.80, 0.95, classes=10)
    assert not collapsed(0.90, 0.95, classes=10)
