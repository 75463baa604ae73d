"""What a defence costs to train, in the form of the paper's table of compute times."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch

from leakscope.core import progress
from leakscope.core.spec import describe
from leakscope.experiments.training import Training, train
from leakscope.models.sca_net import ScaNet
from leakscope.studies.study import Run

#: Pictures of the epochs that are timed, and how many epochs: the first also pays for what is done once.
PICTURES, EPOCHS = 256, 4


class _Clock:
    """Notes the processor time at the end of every epoch of training."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self._training = False

    def stage(self, name: str, total: int) -> AbstractContextManager[progress.Bar]:
        del total
        # Whatever a defence trains beforehand has ended when the target's own training begins.
        self._training = name == "train"
        return nullcontext(self)

    def advance(self, steps: int = 1, **figures: float) -> None:
        del steps
        if self._training and "loss" in figures:
            self.ends.append(time.process_time())

    def say(self, text: str) -> None: ...


def _at_published_width(run: Run) -> bool:
    """Only layers of the published width are timed: with narrow ones the overhead dominates."""
    model = run.plan.scene.architecture
    return isinstance(model, ScaNet) and model.channels == ScaNet.channels and max(model.rows) >= max(ScaNet.rows)


def epoch_seconds(run: Run) -> dict[str, float]:
    """Processor seconds of an epoch of each target, the quickest of three, by key; none at a smaller width.

    Wall-clock times kept with a training say how busy the machine was; here all are timed in one process, on one
    thread, one after the other, and kept in the store.
    """
    if not _at_published_width(run):
        return {}
    return {key: _timed(run, key) for key in run.targets}


def _timed(run: Run, key: str) -> float:
    with run.store.claim("timing", key) as done:
        if done is not None:
            return float(done.record["epoch_seconds"])
        spec = run.spec(run.targets[key])
        data = run.plan.scene.splits.private.take(torch.arange(PICTURES))
        training, clock = Training(epochs=EPOCHS, batch=run.plan.config.training.batch), _Clock()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with progress.listening(clock):
                train(run.plan.scene.build(spec), data, training, seed=spec.seed, device=torch.device("cpu"))
        finally:
            torch.set_num_threads(threads)
        seconds = min(after - before for before, after in pairwise(clock.ends[-EPOCHS:]))
        run.store.put("timing", key, {"epoch_seconds": seconds, "training": describe(training)})
        return seconds
