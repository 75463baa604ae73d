"""The one training loop: any network, any defence, resumable at every epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import progress, seeds
from leakscope.core.checkpoint import load_checkpoint, save_checkpoint
from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.spec import LATER
from leakscope.experiments.training_step import Moment, losses, release_rng, set_up, stepped


@dataclass(frozen=True)
class Training:
    """How a target is trained. `patience` stops early on a validation slice of the private data."""

    epochs: int = 10  # 0: as it is
    batch: int = 64  # pictures per step
    optimizer: Literal["adamw", "sgd"] = "adamw"  # with weight decay apart from the gradient, or plain
    learning_rate: float = 2e-3  # at the end of the warm-up
    weight_decay: float = 1e-4  # of all parameters
    momentum: float = 0.9  # of sgd
    schedule: Literal["cosine", "multistep", "fifths", "constant"] = "cosine"  # how the learning rate falls
    warmup: float = 0.05  # share of all steps
    patience: int | None = None  # epochs without a better validation accuracy
    # Shifts of up to an eighth, and mirror images of colour pictures, or of all where "mirrored" (faces, not digits).
    augment: bool | Literal["mirrored"] = False
    mixed_precision: bool = False  # bfloat16 where the device has it
    #: Epochs after which the weights are kept beside the last ones: early-stopped twins of one run.
    keep: tuple[int, ...] = field(default=(), metadata=LATER)
    #: How an undefended network is trained first, once for each seed; every defence then begins with its weights.
    start: Training | None = field(default=None, metadata=LATER)
    nesterov: bool = field(default=False, metadata=LATER)  # of sgd
    #: Pictures of one epoch, drawn anew for each; None: all. Short epochs let defences that refit by epochs do so.
    pictures: int | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch < 2:
            raise ValueError("epochs must be at least 0 and batch at least 2")
        if self.pictures is not None and self.pictures < self.batch:
            raise ValueError(f"pictures of an epoch must be at least one batch of {self.batch}, or leave them out")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum <= 0):
            raise ValueError("nesterov is a form of momentum: it needs optimizer sgd and a momentum above 0")
        if self.learning_rate <= 0 or not 0 <= self.warmup < 1:
            raise ValueError("learning_rate must be positive and warmup a share in [0, 1)")
        if self.patience is not None and self.patience < 1:
            raise ValueError("patience counts epochs: 1 or more, or leave it out")
        object.__setattr__(self, "keep", tuple(self.keep))
        if list(self.keep) != sorted({epoch for epoch in self.keep if 0 < epoch < self.epochs}):
            raise ValueError(
                f"keep names epochs in growing order, from 1 to {self.epochs - 1}; the last is always kept"
            )
        if self.keep and self.patience:
            raise ValueError("keep and patience exclude each other: a run that stops early may not reach an epoch")
        if self.start is not None and (not self.epochs or not self.start.epochs or self.start.keep or self.start.start):
            raise ValueError("start is a plain training of one epoch or more, before one of one epoch or more")

    def learning_rate_at(self, progress: float) -> float:
        """Learning rate after the share `progress` of all steps."""
        if progress < self.warmup:
            return self.learning_rate * progress / self.warmup
        return self.learning_rate * _SCHEDULES[self.schedule]((progress - self.warmup) / (1 - self.warmup))


_SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda p: 0.5 * (1 + math.cos(math.pi * p)),
    "multistep": lambda p: 0.1 ** float((p >= 0.5) + (p >= 0.75)),
    # Epochs 60, 120, 180 and 210 of 240: Xia et al., "CEM", 2025.
    "fifths": lambda p: 0.2 ** float((p >= 0.25) + (p >= 0.5) + (p >= 0.75) + (p >= 0.875)),
    "constant": lambda p: 1.0,
}


@dataclass
class History:
    """History of a training, one row per epoch."""

    loss: list[float] = field(default_factory=list)
    penalty: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    seconds: float = 0.0


#: Called with the epochs done, the network as it is, and its history so far.
Reached = Callable[[int, SplitModel, History], None]


def train(
    split: SplitModel,
    data: ImageSet,
    training: Training,
    *,
    seed: int,
    device: torch.device,
    checkpoint: Path | None = None,
    reached: Reached | None = None,
) -> tuple[SplitModel, History, dict[str, Any]]:
    """Train `split` with its defence on private data; returns it with its history and the defence's notes.

    Every epoch draws from generators named after it, so a run that resumes from a checkpoint gives
    the numbers of a run that was never interrupted. `reached` is called after every epoch of `training.keep`,
    before the next checkpoint is written.
    """
    defense = split.defense
    data = defense.augment(data, seeds.generator(seed, "target", "augment"))
    data, validation = _hold_out(data, seed) if training.patience else (data, None)
    aux = set_up(split, data, seed).to(device)
    run = _Run(split.to(device), aux, data, training, seed, device)
    run.resume(checkpoint)
    total = training.epochs * run.steps
    with progress.stage("train", total) as bar:
        bar.advance(run.epoch * run.steps)
        while run.epoch < training.epochs and not run.stopped:
            run.one_epoch(bar)
            if validation is not None:
                run.validate(validation)
            if reached is not None and run.epoch in training.keep:
                reached(run.epoch, run.split, run.history)
            run.save(checkpoint)
    trained = run.finished()
    defense.finish(trained, aux)
    return trained, run.history, defense.notes(trained, aux)


def _hold_out(data: ImageSet, seed: int, share: float = 0.1) -> tuple[ImageSet, ImageSet]:
    order = torch.randperm(len(data), generator=seeds.generator(seed, "target", "validation"))
    count = max(1, round(share * len(data)))
    return data.take(order[count:].sort().values), data.take(order[:count].sort().values)


class _Run:
    """A training under way: what a checkpoint holds."""

    def __init__(
        self, split: SplitModel, aux: nn.Module, data: ImageSet, training: Training, seed: int, device: torch.device
    ) -> None:
        self.split, self.aux, self.data, self.training = split, aux, data, training
        self.seed, self.device = seed, device
        self.optimizer = _optimizer(training, stepped(split, aux))
        self.epoch = 0
        self.steps = max(1, min(len(data), training.pictures or len(data)) // training.batch)
        self.history = History()
        self.best: dict[str, Tensor] | None = None
        self.saved_at = time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether validation has not improved for `patience` epochs."""
        scores, patience = self.history.validation, self.training.patience
        return patience is not None and len(scores) > patience and max(scores[-patience:]) <= max(scores[:-patience])

    def one_epoch(self, bar: progress.Bar) -> None:
        started = time.monotonic()
        split, defense, training, epoch = self.split, self.split.defense, self.training, self.epoch
        order = torch.randperm(len(self.data), generator=seeds.generator(self.seed, "target", "order", epoch))
        shifts = seeds.generator(self.seed, "target", "shift", epoch)
        rng = release_rng(self.seed, epoch, self.device)
        split.train()
        self.aux.train()
        defense.before_epoch(split, self.aux, self.data, epoch)
        loss_sum = penalty_sum = torch.zeros((), device=self.device)
        hits = torch.zeros((), device=self.device)
        size = min(training.batch, len(order))
        with seeds.ambient(self.seed, "target", "epoch", epoch, device=self.device):
            for number in range(self.steps):
                index = order[number * size : (number + 1) * size]
                x, y = self.data.images[index], self.data.labels[index].to(self.device)
                if training.augment:
                    x = _augmented(x, shifts, mirror=x.shape[1] == 3 or training.augment == "mirrored")
                x = x.to(self.device)
                rate = training.learning_rate_at((epoch + (number + 0.5) / self.steps) / max(training.epochs, 1))
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                with torch.autocast(self.device.type, torch.bfloat16, enabled=training.mixed_precision):
                    found = losses(split, self.aux, x, y, Moment(epoch, training.epochs, rate), rng)
                found.require_finite(f"epoch {epoch + 1}, batch {number + 1}")
                self.optimizer.zero_grad(set_to_none=True)
                defense.backward(found.total, found.step)
                self._refuse_bad_gradients(number)
                self.optimizer.step()
                defense.after_step(split, self.aux)
                loss_sum = loss_sum + found.step.task_loss.detach()
                penalty_sum = penalty_sum + (0.0 if found.penalty is None else found.penalty.detach())
                hits = hits + (found.step.scores.detach().argmax(1) == y).sum()
                bar.advance(1)
        self.history.loss.append(loss_sum.item() / self.steps)
        self.history.penalty.append(penalty_sum.item() / self.steps)
        self.history.accuracy.append(hits.item() / (self.steps * size))
        self.history.seconds += time.monotonic() - started
        bar.advance(0, loss=self.history.loss[-1], accuracy=self.history.accuracy[-1])
        self.epoch += 1

    def _refuse_bad_gradients(self, number: int) -> None:
        """A finite loss may still have a gradient that is not (a square root at 0): it must not reach the weights."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not torch.isfinite(nn.utils.get_total_norm(gradients)):
            raise UsageError(
                f"training diverged: a gradient is not finite in epoch {self.epoch + 1}, batch {number + 1}; "
                "lower training.learning_rate or the defence's weight"
            )

    def validate(self, validation: ImageSet) -> None:
        rng = seeds.generator(self.seed, "target", "validate", self.epoch, device=self.device)
        scores = predict(self.split, validation.images, rng, self.device)
        accuracy = (scores.argmax(1) == validation.labels).float().mean().item()
        if accuracy > max(self.history.validation, default=-1.0):
            self.best = {name: tensor.detach().clone() for name, tensor in self.split.state_dict().items()}
        self.history.validation.append(accuracy)

    def finished(self) -> SplitModel:
        if self.best is not None:
            self.split.load_state_dict(self.best)
        return self.split.eval().requires_grad_(False)

    def save(self, checkpoint: Path | None) -> None:
        """Write a checkpoint, but not more often than every few seconds."""
        if checkpoint is None or time.monotonic() - self.saved_at < 5:
            return
        state = {
            "epoch": self.epoch,
            "split": self.split.state_dict(),
            "aux": self.aux.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "history": vars(self.history),
        }
        save_checkpoint(checkpoint, state)
        self.saved_at = time.monotonic()

    def resume(self, checkpoint: Path | None) -> None:
        state = None if checkpoint is None else load_checkpoint(checkpoint, self.device)
        if state is None:
            return
        self.epoch = state["epoch"]
        self.split.load_state_dict(state["split"])
        self.aux.load_state_dict(state["aux"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best = state["best"]
        self.history = History(**state["history"])
        progress.say(f"resuming after epoch {self.epoch}")


def _optimizer(training: Training, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if not parameters:
        raise UsageError("the defence leaves no parameter to train; free a layer or set training.epochs to 0")
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, rate, momentum=training.momentum, weight_decay=decay, nesterov=training.nesterov
        )
    return torch.optim.AdamW(parameters, rate, weight_decay=decay)


def _augmented(x: Tensor, rng: torch.Generator, *, mirror: bool) -> Tensor:
    """Each picture shifted by up to an eighth of its side and, if asked for, mirrored half the time."""
    n, _, height, width = x.shape
    reach = max(1, height // 8)
    padded = F.pad(x, (reach,) * 4)
    top, left = torch.randint(0, 2 * reach + 1, (2, n, 1, 1), generator=rng)
    rows = top + torch.arange(height).view(1, -1, 1)  # N×H×1
    columns = left + torch.arange(width).view(1, 1, -1)  # N×1×W
    if mirror:
        mirrored = torch.rand(n, 1, 1, generator=rng) < 0.5
        columns = torch.where(mirrored, columns.flip(-1), columns)
    # Advanced indices around the slice put their N×H×W first and the channels last.
    return padded[torch.arange(n).view(-1, 1, 1), :, rows, columns].permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def predict(split: SplitModel, images: Tensor, rng: torch.Generator, device: torch.device, batch: int = 256) -> Tensor:
    """Scores of all pictures, with the release that is deployed."""
    split.eval()
    return torch.cat([split.run(part.to(device), rng).scores.float().cpu() for part in images.split(batch)])
