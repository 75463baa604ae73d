"""What an attack cost: learning counts, also where another job did it and the store keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.attacks.decoder import TrainedDecoder
from leakscope.core.attack import Prepared
from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import make_plan
from leakscope.experiments.stages import Case, prepare, reconstruct, train_target
from leakscope.experiments.workplace import Workplace
from leakscope.store import Store


def _case(place: Workplace) -> Case:
    asked = {
        "data": "digits", "splits": {"private": 60, "heldout": 40, "public": 60}, "model": {"kind": "mlp"},
        "cuts": ["relu1"], "victims": 4, "training": {"epochs": 0}, "attacks": [{"kind": "decoder", "steps": 4}],
    }  # fmt: skip
    plan = make_plan(AuditConfig.checked(asked))
    target = train_target(plan.scene, plan.targets[0], place)
    return Case.of(plan.scene, target, plan.attacks[0])


@pytest.mark.parametrize("apart", [False, True], ids=["at-once", "in-two-jobs"])
def test_learning_is_part_of_the_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr("leakscope.experiments.stages.time.process_time", lambda: clock["now"])
    learn, rebuild = TrainedDecoder.prepare, TrainedDecoder.reconstruct

    def slowly(self: TrainedDecoder, view: Any, rng: torch.Generator) -> Prepared:
        clock["now"] += 100
        return learn(self, view, rng)

    def quickly(self: TrainedDecoder, *given: Any) -> Any:
        clock["now"] += 1
        return rebuild(self, *given)

    monkeypatch.setattr(TrainedDecoder, "prepare", slowly)
    monkeypatch.setattr(TrainedDecoder, "reconstruct", quickly)
    place = Workplace(Store(tmp_path), torch.device("cpu"))
    case = _case(place)
    queries = 0
    if apart:
        view = case.view(place)
        prepare(case, view, place)
        queries = view.budget.spent
        clock["now"] += 1000  # whatever happens between the two jobs
    found = reconstruct(case, place).diagnostics
    assert found.cpu_seconds == 101
    assert found.queries > 0
    assert found.queries >= queries
    again = case.view(place)
    prepare(case, again, place)
    assert again.budget.spent == found.queries  # a decoder asks nothing more when it rebuilds
