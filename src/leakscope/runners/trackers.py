"""Grids in TensorBoard or MLflow (extra `track`). Nothing is logged unless asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from leakscope.auditing.flags import with_flags
from leakscope.core.errors import UsageError
from leakscope.experiments.reading import read_controls, read_result, read_target
from leakscope.runners.events import Event, Watcher
from leakscope.store import Store


class _Scores:
    """Passes on the number of finished jobs and the mean leak of every result, as they come."""

    def __init__(self, store: Store, log: Callable[[str, float, int], None], end: Callable[[], None]) -> None:
        self._store, self._log, self._end = store, log, end
        self._ended: Counter[str] = Counter()

    def tell(self, event: Event) -> None:
        kind = event.event
        if kind in {"done", "failed"}:
            self._ended[kind] += 1
            step = self._ended.total()
            self._log(f"jobs/{kind}", self._ended[kind], step)
            self._log(f"seconds/{event.stage}", event.seconds, step)
        if kind == "done" and event.stage == "attack":
            self._log_scores(event.key, step)
        if kind == "end":
            self._end()

    def _log_scores(self, key: str, step: int) -> None:
        """The mean of every metric, and how many flags block: doubt is told with the number."""
        result = read_result(self._store, key)
        target = read_target(self._store, result.target)
        assert target is not None
        found = with_flags(target, [replace(result, controls=read_controls(self._store, result.control))])[0]
        name = f"{target.data}/{target.model.label}/{target.defense.label}/{result.attack.label}"
        for metric, summary in result.metrics.items():
            self._log(f"{metric}/{name}", summary.mean, step)
        self._log(f"doubts/{name}", float(sum(flag.blocks for flag in found.flags)), step)


def _tensorboard(store: Store, name: str) -> Watcher:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(store.root / "tensorboard" / name))
    return _Scores(store, writer.add_scalar, writer.close)


def _mlflow(store: Store, name: str) -> Watcher:
    import mlflow

    if "MLFLOW_TRACKING_URI" not in os.environ:
        mlflow.set_tracking_uri((Path(store.root).absolute() / "mlflow").as_uri())
    mlflow.set_experiment(name)
    mlflow.start_run()

    def log(key: str, value: float, step: int) -> None:
        # MLflow allows few signs in a name.
        mlflow.log_metric("".join(c if c.isalnum() or c in "_-. /" else "_" for c in key), value, step=step)

    return _Scores(store, log, mlflow.end_run)


TRACKERS: dict[str, Callable[[Store, str], Watcher]] = {"tensorboard": _tensorboard, "mlflow": _mlflow}


def tracker(kind: str, store: Store, name: str) -> Watcher:
    """A watcher that logs a grid to an experiment tracker."""
    if kind not in TRACKERS:
        raise UsageError(f"unknown tracker {kind!r}; choose from: {', '.join(TRACKERS)}")
    try:
        return TRACKERS[kind](store, name)
    except ImportError:
        raise UsageError(f"{kind} is not installed; pip install 'leakscope[track]'") from None
