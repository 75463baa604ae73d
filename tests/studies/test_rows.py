"""How the figures of a page came about: seeds and hours of training, each counted once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from leakscope.experiments.config import AuditConfig
from leakscope.experiments.plan import make_plan
from leakscope.store import Store
from leakscope.studies.page import name_of
from leakscope.studies.rows import _seeds, _training_seconds, rows_of

from .samples import runs_of

CONFIG = {
    "data": "digits",
    "splits": {"private": 60, "heldout": 40, "public": 60},
    "model": {"kind": "mlp", "widths": [8, 8]},
    "cuts": ["relu1"],
    "defenses": ["none", "gaussian:sigma=0.5"],
    "attacks": ["ridge"],
    "training": {"epochs": 1, "start": {"epochs": 2}},
}


def _runs(store: Store, **variants: list[int]) -> Any:
    plans = {name: make_plan(AuditConfig.checked({**CONFIG, "seeds": seeds})) for name, seeds in variants.items()}
    runs = {
        name: SimpleNamespace(
            plan=plan,
            store=store,
            targets={spec.key: SimpleNamespace(trained=spec.trained_key) for spec in plan.targets},
        )
        for name, plan in plans.items()
    }
    return cast("Any", SimpleNamespace(runs=runs, first=next(iter(runs.values()))))


def test_a_seed_that_only_served_to_choose_is_not_among_those_reported(tmp_path: Path) -> None:
    runs = _runs(Store(tmp_path), table=[0, 1], grid=[9])
    assert _seeds(runs, "grid") == (0, 1)
    assert _seeds(runs, "") == (0, 1, 9)


def test_the_network_that_defences_begin_with_counts_once_per_seed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = _runs(store, table=[0, 1], again=[0, 1])
    specs = runs.runs["table"].plan.targets
    for spec in specs:
        store.put("trained", spec.trained_key, {"history": {"seconds": 1.0}})
    for start in {spec.start.trained_key for spec in specs}:
        store.put("trained", start, {"history": {"seconds": 100.0}})
    assert _training_seconds(runs) == 2 * 100 + 4 * 1


def test_networks_of_one_run_that_were_stopped_are_rows_of_their_own(tmp_path: Path) -> None:
    """They were one row, with the mean of their accuracies."""
    common = {**CONFIG, "training": {"epochs": 2, "keep": [1]}, "stops": [1, None], "seeds": [0, 1], "victims": 8}
    rows = rows_of(runs_of(tmp_path, common, {"main": {}}))
    assert [name_of(row) for row in rows] == [
        "main: none, epoch 1", "main: none",
        "main: gaussian:sigma=0.5, epoch 1", "main: gaussian:sigma=0.5",
    ]  # fmt: skip
    assert [row.seeds for row in rows] == [(0, 1)] * 4
