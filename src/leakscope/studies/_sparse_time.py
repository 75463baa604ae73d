"""What a defence costs to train, in the form of the paper's table of compute times."""

from __future__ import annotations

import time

import torch

from leakscope.core.spec import label
from leakscope.pipeline.train import Training, train
from leakscope.studies._sparse_claims import known_as
from leakscope.studies.study import Figures, Run

#: Pictures of the epoch that is timed.
PICTURES = 256


def epoch_seconds(run: Run) -> Figures:
    """Processor seconds of a second epoch of each defence, and of what it prepares before the first.

    Wall-clock times kept with a training say how busy the machine was; here all defences are timed in
    one process, one after the other. Two runs, of one and of two epochs, are subtracted.
    """
    data = run.plan.splits.private.take(torch.arange(PICTURES))
    found: Figures = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for defense in run.plan.defenses:
            spent = []
            for epochs in (1, 2):
                split = run.plan.build(run.plan.cuts[0], defense, 0)
                training = Training(epochs=epochs, batch=run.plan.config.training.batch)
                started = time.process_time()
                train(split, data, training, seed=0, device=torch.device("cpu"))
                spent.append(time.process_time() - started)
            epoch = max(spent[1] - spent[0], 1e-3)
            found[known_as(label(defense))] = {"epoch": epoch, "before": max(spent[0] - epoch, 0.0)}
    finally:
        torch.set_num_threads(threads)
    return found
