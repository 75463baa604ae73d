"""What piles up on the desk while an audit runs: targets, findings, flags."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from leakscope.auditing.flags import Flag
from leakscope.core.attack import Attack
from leakscope.core.data import ImageSet
from leakscope.core.spec import label
from leakscope.pipeline.about import about
from leakscope.pipeline.evaluator import EvaluationNetwork, evaluation_network
from leakscope.pipeline.execute import Case, Target, Workplace, run_attack, run_scores, summaries
from leakscope.pipeline.plan import Plan


@dataclass
class Finding:
    """One attack on one target, scored."""

    case: Case
    key: str
    guess: Tensor
    values: dict[str, Tensor]
    row: dict[str, Any]

    @property
    def leak(self) -> float:
        return float(self.row["metrics"]["leak"]["mean"])

    @property
    def where(self) -> str:
        row = self.row
        return f"{row['attack']} on {row['defense']} at {row['cut']}, seed {row['seed']}"


@dataclass
class Desk:
    """What piles up while an audit runs."""

    plan: Plan
    place: Workplace
    findings: dict[str, list[Finding]] = field(default_factory=lambda: defaultdict(list))
    targets: dict[str, Target] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)

    @cached_property
    def judge(self) -> EvaluationNetwork | None:
        """Who recognises rebuilt classes; nobody when pictures are attacked."""
        plan = self.plan
        if not plan.rebuilds_classes:
            return None
        return evaluation_network(plan.config.evaluator, plan.splits, plan.data_root, self.place)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What tables call the results of this plan."""
        return about(self.plan)

    def attack(
        self,
        target: Target,
        attack: Attack,
        seed: int,
        *,
        public: ImageSet | None = None,
        victims: ImageSet | None = None,
    ) -> Finding:
        """One attack on the plan's pictures, or, for a control, on others."""
        plan = self.plan
        shown, known = victims or plan.victims, public or plan.splits.public
        case = Case(target, attack, plan.threat, known, shown, seed, self.judge, self.about)
        attack_key, guess, notes = run_attack(case, self.place)
        key, values = run_scores(attack_key, guess, case, plan.metrics, plan.data_root, self.place)
        row = {
            "key": key,
            "target": target.key,
            **{name: target.record.get(name) for name in ("model", "defense", "cut", "seed", "accuracy")},
            "attack": label(attack),
            "flags": [],
            "metrics": summaries(values, plan.metrics),
            "seconds": notes.get("seconds", 0.0),
            "notes": notes,
        }
        return Finding(case, key, guess, values, row)
