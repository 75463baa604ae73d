"""Attacks without an audit around them: scores to look at."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leakscope.core.spec import label
from leakscope.pipeline.about import about
from leakscope.pipeline.execute import Case, Workplace, realise, run_attack, run_scores, summaries, target_plan
from leakscope.pipeline.plan import Plan


def attack_all(plan: Plan, place: Workplace) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """One row of scores, and the reconstructions, for every target and attack of a plan."""
    rows, guesses, facts = [], {}, about(plan)
    for cut, defense, seed in plan.grid:
        target = realise(plan, target_plan(plan, cut, defense, seed), place)
        for attack in plan.suited[cut, defense]:
            case = Case(target, attack, plan.threat, plan.splits.public, plan.victims, seed, about=facts)
            key, guess, notes = run_attack(case, place)
            result, values = run_scores(key, guess, case, plan.metrics, plan.data_root, place)
            rows.append(
                {
                    "key": result,
                    "target": target.key,
                    "defense": label(defense),
                    "cut": cut,
                    "attack": label(attack),
                    "seed": seed,
                    "accuracy": target.record["accuracy"],
                    "metrics": summaries(values, plan.metrics),
                    "seconds": notes.get("seconds"),
                }
            )
            guesses[result] = guess
    return rows, guesses
