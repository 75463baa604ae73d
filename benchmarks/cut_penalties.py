"""What each form of CEM adds to a training step of vgg11-sgm, and cem-logdet to an epoch; one run, one thread.

Batch 128, 32×32 pictures, 512 features, 10 classes. Steps are interleaved and CPU time is taken, so that a
loaded machine slows all of them alike; a ratio is the quickest of several rounds over the quickest plain step.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Stack, Step
from leakscope.core.model import SplitModel
from leakscope.defenses.cem import CEM
from leakscope.defenses.cem_fused import CEMFused
from leakscope.defenses.cem_gated import CEMGated
from leakscope.defenses.cem_logdet import CEMLogDet
from leakscope.defenses.cem_slot import CEMSlot
from leakscope.defenses.gaussian import Gaussian
from leakscope.experiments.training import Training, train
from leakscope.models.vgg11_sgm import VGG11SGM

BATCH, CLASSES, BAR = 128, 10, 1.05
NOISE = Gaussian(0.025)
FORMS: dict[str, Defense] = {
    "cem": CEM(),
    "cem, two stages": CEM(two_stage=True),
    "cem-logdet": CEMLogDet(),
    "cem-gated, published": CEMGated(form="published", warmup=0),
    "cem-gated, adversarial": CEMGated(warmup=0),
    "cem-gated, detached": CEMGated(form="detached", warmup=0),
    "cem-slot, published": CEMSlot(form="published", warmup=0),
    "cem-slot, adversarial": CEMSlot(warmup=0),
    "cem-slot, detached": CEMSlot(form="detached", warmup=0),
    "cem-fused, parallel": CEMFused(warmup=0),
    "cem-fused, shortcut": CEMFused(coupling="shortcut", warmup=0),
}
#: Forms kept for fidelity only: the cost is the published method's own.
AS_PUBLISHED = {"cem, two stages", "cem-slot, published"}


def pictures(count: int) -> ImageSet:
    images = torch.rand(count, 3, 32, 32, generator=seeds.generator(0, "benchmark"))
    return ImageSet(images, torch.arange(count) % CLASSES, tuple(map(str, range(CLASSES))))


def backbone() -> nn.Module:
    with seeds.ambient(0, "benchmark"):
        return VGG11SGM().build((3, 32, 32), CLASSES)


def network(module: nn.Module, defense: Defense | None) -> SplitModel:
    return SplitModel(module, "client", defense=NOISE if defense is None else Stack((NOISE, defense))).train()


class Steps:
    """A defence on the network all share, taking step after step on one batch.

    Were every form to bring a network of its own, where its weights happen to lie in memory would be timed too.
    """

    def __init__(self, module: nn.Module, defense: Defense | None, data: ImageSet) -> None:
        self.split, self.rng = network(module, defense), seeds.generator(0, "steps")
        self.defense, self.x, self.y = self.split.defense, data.images[:BATCH], data.labels[:BATCH]
        self.aux = self.defense.setup(self.split, data, self.rng)
        self.defense.before_epoch(self.split, self.aux, data, 1)
        own = list(self.defense.optimised(self.aux))
        self.optimizer = torch.optim.SGD([*self.split.parameters(), *own], 0.05, momentum=0.9, weight_decay=5e-4)

    def at(self, features: Tensor | None) -> tuple[Tensor, Step]:
        out = self.split.run(self.x, self.rng)
        task = F.cross_entropy(out.scores, self.y)
        features = out.features if features is None else features
        return task, Step(
            self.x, self.y, features, out.released, out.scores, task, self.split, self.aux, 9, 10, 0.05, self.rng
        )

    def step(self) -> float:
        started = time.process_time()
        task, step = self.at(None)
        penalty = self.defense.penalty(step)
        self.optimizer.zero_grad(set_to_none=True)
        self.defense.backward(task if penalty is None else task + penalty, step)
        self.optimizer.step()
        self.defense.after_step(self.split, self.aux)
        return time.process_time() - started

    def surrogate_alone(self, repeats: int = 5) -> float:
        """Value and gradient of the penalty on given features: what a single backward adds to a step."""
        with torch.no_grad():
            features = self.split.encode(self.x)
            task, given = self.at(features)
        times = []
        for _ in range(repeats):
            leaf = features.clone().requires_grad_()
            started = time.process_time()
            penalty = self.defense.penalty(dataclasses.replace(given, features=leaf, task_loss=task))
            if penalty is not None:
                penalty.backward()
            times.append(time.process_time() - started)
        return statistics.median(times)


def epoch(defense: Defense | None, data: ImageSet, epochs: int) -> Callable[[], float]:
    """CPU seconds an epoch, everything included."""

    def run() -> float:
        started = time.process_time()
        settings = Training(epochs=epochs, batch=BATCH, optimizer="sgd", learning_rate=0.05)
        train(network(backbone(), defense), data, settings, seed=0, device=torch.device("cpu"))
        return (time.process_time() - started) / epochs

    return run


def ratios(rounds: int, plain: Callable[[], float], others: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The quickest defended run over the quickest plain one, all interleaved: disturbances only ever add time."""
    runs = {"plain": plain, **others}
    times = [{name: run() for name, run in runs.items()} for _ in range(rounds)]
    best = {name: min(each[name] for each in times) for name in runs}
    return {name: best[name] / best["plain"] for name in others}


def main(rounds: int = 7, epoch_rounds: int = 15) -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    data = pictures(10 * BATCH)
    module = backbone()
    plain = Steps(module, None, data)
    forms = {name: Steps(module, defense, data) for name, defense in FORMS.items()}
    for each in (plain, *forms.values()):
        each.step()  # warm up
    steps = ratios(rounds, plain.step, {name: form.step for name, form in forms.items()})
    one_step = statistics.median(plain.step() for _ in range(3))
    alone = {name: form.surrogate_alone() for name, form in forms.items() if not form.defense.owns_backward}
    print(f"plain step: {one_step:.3f} s of CPU; bar {BAR:.2f}")
    for name, ratio in steps.items():
        share = f"surrogate alone +{alone[name] / one_step:.4f}" if name in alone else "a second backward"
        kept = " (as published, for fidelity)" if name in AS_PUBLISHED and ratio > BAR else ""
        print(f"  {name:24} {ratio:.3f}  {share}  {'ok' if ratio <= BAR else 'MISSES'}{kept}")
    # The published form refits after its first epoch, so two are timed; of one batch, so that they alternate often.
    short = data.take(torch.arange(BATCH))
    epochs = ratios(
        epoch_rounds,
        epoch(None, short, 2),
        {"epoch of cem-logdet": epoch(CEMLogDet(), short, 2), "epoch of cem": epoch(CEM(), short, 2)},
    )
    for name, ratio in epochs.items():
        print(f"  {name:24} {ratio:.3f}")
    found = {**steps, **{f"{name}, surrogate alone": 1 + value / one_step for name, value in alone.items()}, **epochs}
    print(json.dumps({"benchmark": "cut_penalties", "ratios": found, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
