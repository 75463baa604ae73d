"""What a defence costs to train, in the form of the paper's table of compute times."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch

from leakscope.core import progress
from leakscope.core.spec import label
from leakscope.pipeline.train import Training, train
from leakscope.studies._sparse_claims import known_as
from leakscope.studies.study import Figures, Run

#: Pictures of the epochs that are timed, and how many epochs: the first also pays for what is done once.
PICTURES, EPOCHS = 256, 4


class _Clock:
    """Notes the processor time at the end of every epoch of training."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self._training = False

    def stage(self, name: str, total: int) -> AbstractContextManager[progress.Bar]:
        # Whatever a defence trains beforehand has ended when the target's own training begins.
        self._training = name == "train"
        return nullcontext(self)

    def advance(self, steps: int = 1, **figures: float) -> None:
        if self._training and "loss" in figures:
            self.ends.append(time.process_time())

    def say(self, text: str) -> None: ...


def epoch_seconds(run: Run) -> Figures:
    """Processor seconds of an epoch of each defence, the quickest of three, and of all that comes before the first.

    Wall-clock times kept with a training say how busy the machine was; here all defences are timed in
    one process, one after the other.
    """
    data = run.plan.splits.private.take(torch.arange(PICTURES))
    found: Figures = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for defense in run.plan.defenses:
            split = run.plan.build(run.plan.cuts[0], defense, 0)
            training, clock = Training(epochs=EPOCHS, batch=run.plan.config.training.batch), _Clock()
            started = time.process_time()
            with progress.listening(clock):
                train(split, data, training, seed=0, device=torch.device("cpu"))
            ends = clock.ends[-EPOCHS:]
            epoch = min(after - before for before, after in pairwise(ends))
            found[known_as(label(defense))] = {"epoch": epoch, "before": max(ends[0] - started - epoch, 0.0)}
    finally:
        torch.set_num_threads(threads)
    return found
