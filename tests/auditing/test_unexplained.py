"""An attack whose pictures do not explain the features it was given proves nothing by failing."""

from __future__ import annotations

from typing import Any

from leakscope.auditing.flags import RULES, Flag, across, with_blocks


def row(key: str, attack: str, leak: float, **notes: Any) -> dict[str, Any]:
    return {"key": key, "attack": attack, "metrics": {"leak": {"mean": leak}}, "notes": notes}


def test_alone_it_blocks_the_verdict() -> None:
    assert across([row("p", "peel-exact", 0.1, unexplained=0.2)], set()) == {"p": ["not-converged"]}
    assert RULES["not-converged"].severity == "blocks"


def test_beside_an_attack_that_explains_them_and_does_no_worse_it_warns() -> None:
    rows = [row("p", "peel-exact", 0.1, unexplained=1.0), row("e", "e2e-lbfgs", 0.4, unexplained=0.0)]
    assert across(rows, set()) == {"p": ["features-unexplained"]}
    assert RULES["features-unexplained"].severity == "warns"
    rows = [row("p", "peel-exact", 0.6, unexplained=1.0), row("e", "e2e-lbfgs", 0.4, unexplained=0.0)]
    assert across(rows, set()) == {"p": ["not-converged"]}


def test_a_diverged_solve_blocks_unless_another_attack_stands_in_for_it() -> None:
    lost = row("p", "peel-exact", 0.1, unexplained=1.0, diverged=0.5)
    assert across([lost], set()) == {"p": ["attack-diverged"]}
    assert across([lost, row("e", "e2e-lbfgs", 0.4, unexplained=0.0, diverged=0.0)], set()) == {
        "p": ["features-unexplained"]
    }
    both = across([lost, row("e", "e2e-lbfgs", 0.4, unexplained=0.1, diverged=0.0)], set())
    assert both == {"p": ["attack-diverged"], "e": ["not-converged"]}


def test_at_the_ceiling_nothing_is_left_to_explain() -> None:
    assert across([row("p", "peel", 0.97, unexplained=1.0)], set()) == {}


def test_the_flag_names_the_first_blocks() -> None:
    notes = {"diverged_blocks": ["layer4.1"], "unexplained_blocks": [f"b{i}" for i in range(5)]}
    assert with_blocks(Flag("attack-diverged", "peel on none"), notes).where == "peel on none, block layer4.1"
    assert with_blocks(Flag("not-converged", "x"), notes).where == "x, blocks b0, b1, b2 and 2 more"
    assert with_blocks(Flag("features-unexplained", "x"), notes).where == "x, block layer4.1"
    assert with_blocks(Flag("zero-gradient", "x"), notes).where == "x"
    assert with_blocks(Flag("attack-diverged", "x"), {}).where == "x"
