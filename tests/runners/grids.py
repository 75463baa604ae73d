"""A grid small enough to run many times, and what is read back from its store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from leakscope.experiments.job import Job
from leakscope.runners.bench import Bench, plan_bench
from leakscope.store import Store

#: Two targets, two attacks, of which one keeps what it learns, one seed: 2 + 2 + 4 jobs and two controls.
GRID: dict[str, Any] = {
    "data": ["digits"],
    "models": [{"model": "mlp:widths=[32,16]", "cuts": ["relu1"]}],
    "base": {
        "splits": {"private": 120, "heldout": 40, "public": 80},
        "training": {"epochs": 1},
        "victims": 8,
    },
    "defenses": ["none", "gaussian:sigma=0.5"],
    "attacks": ["ridge", "decoder:steps=10"],
    "seeds": [0],
}


def write_grid(folder: Path, **changes: Any) -> Path:
    """The grid as a file, with settings of its first level changed."""
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump({**GRID, **changes}))
    return path


def planned(store: Path, folder: Path, **changes: Any) -> Bench:
    return plan_bench(write_grid(folder, **changes), {}, None, Store(store))


def stages(jobs: Iterable[Job]) -> dict[str, int]:
    counts = Counter(job.stage for job in jobs)
    return {stage: counts[stage] for stage in ("target", "prepare", "attack", "control")}


def scores(store: Path) -> dict[str, Any]:
    """Every score of a store by its key, to the last digit: what no runner may change."""
    found = {}
    for key in Store(store).keys("result"):
        entry = Store(store).get("result", key)
        assert entry is not None
        found[key] = {name: values.tolist() for name, values in entry.tensors().items()}
    return found
