"""Training a decoder on the releases of the attacker's own pictures, and applying it to the victims'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.attacks._decoders import FRONTS, Capacity, Decoder
from leakscope.attacks._losses import Loss
from leakscope.attacks._release import PublicReleases, channel_statistics
from leakscope.core import progress, seeds
from leakscope.core.attack import Observed, Prepared, Reconstruction
from leakscope.core.chunks import fitting, in_chunks
from leakscope.core.metering import forward_only
from leakscope.core.residence import resident, rows_of
from leakscope.core.results import Diagnostics
from leakscope.core.threat import View
from leakscope.nn.denormals import denormals_as_zero
from leakscope.nn.precision import Precision, compiled, computing
from leakscope.nn.weights import moved

_APPLIED = 256  # victims rebuilt at once, if they fit
_CHECKS = 10  # looks at the validation slice
_CHECKED = 256  # pictures of the slice that are looked at
_WARM_UP = 0.15  # share of the steps
_ROUNDS = (4, 8, 16, 32, 64)  # passes over the pictures, without a number of steps
_FEWEST = 100  # steps of the first round, however few pictures there are
_GAIN = 0.02  # a round that lowers the validation loss by less than this share is the last

#: `objective(guess, truth, released)`: what one step minimises.
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Course:
    """How long, how fast and on how much a decoder is trained."""

    steps: int | None  # None: rounds of growing length, until one brings nothing
    batch: int
    learning_rate: float
    weight_decay: float
    validation: float
    patience: int
    precision: Precision = "float32"
    compiled: bool = False

    def __post_init__(self) -> None:
        if (self.steps or 0) < 0 or self.batch < 1 or self.patience < 1:
            raise ValueError("steps must be 0 or more, batch and patience 1 or more")
        if self.learning_rate <= 0 or self.weight_decay < 0:
            raise ValueError("learning_rate must be positive, weight_decay 0 or more")
        if not 0 < self.validation < 1:
            raise ValueError("validation is the share of public pictures kept for early stopping, such as 0.1")


@dataclass(frozen=True)
class Network:
    """Which decoder is built."""

    front: str
    capacity: Capacity

    def build(self, view: View, shape: tuple[int, ...], statistics: tuple[Tensor, Tensor], seed: int) -> Decoder:
        images = view.public.images
        low, high = (0.0, 1.0) if view.public.pixels else (float(images.min()), float(images.max()))
        with seeds.ambient(seed, "decoder"):
            body = FRONTS[self.front](shape, view.image_shape, self.capacity)
        decoder = moved(Decoder(body, *statistics, torch.tensor([low, high])), view.device)
        decoder.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return decoder


def learn(
    view: View,
    network: Network,
    course: Course,
    judged_by: Loss,
    objective: Callable[[PublicReleases, Tensor], Objective],
    rng: torch.Generator,
) -> Prepared:
    """A decoder trained on public pictures; `objective` is made of their releases, and the indices that train.

    The best of ten looks at a validation slice, by the loss `judged_by`, is kept.
    """
    releases = PublicReleases(view, rng)
    if len(releases) < 2:
        return Prepared(diagnostics=Diagnostics(details={"steps": 0, "parameters": 0}))
    order = torch.randperm(len(releases), generator=rng, device=rng.device).to(view.device)
    pictures = _Pictures(view)
    held = max(1, round(course.validation * len(order)))
    ours, slice_ = order[held:], order[:held][:_CHECKED]

    sample = torch.cat([releases.draw(index) for index in ours[:2048].split(256)])
    shape, statistics = tuple(sample.shape[1:]), channel_statistics(sample)
    del sample
    decoder = network.build(view, shape, statistics, _seed(rng))
    judge = _Judge(judged_by, releases.draw(slice_), pictures(slice_))
    lesson = _Lesson(
        decoder, releases, pictures, _Batches(ours, course.batch, rng), objective(releases, ours), judge, course
    )
    curve, taken, converged = lesson.train() if course.steps is None else (*lesson.cycle(course.steps, 1.0), None)
    tensors = {name: tensor.contiguous() for name, tensor in decoder.state_dict().items()}
    size = sum(p.numel() for p in decoder.parameters())
    details = {"steps": taken, "parameters": size, "random_release": releases.random}
    return Prepared(tensors, Diagnostics(curve=tuple(curve), converged=converged, details=details))


@torch.no_grad()
def apply(view: View, network: Network, prepared: Prepared, seen: Observed, attack: str) -> Reconstruction:
    """What a learnt decoder makes of the victims; the mean picture when it had nothing to learn from."""
    if seen.features is None:
        raise ValueError(f"{attack} rebuilds observed inputs; it was handed no features")
    if not prepared.tensors:
        mean = view.public.images.mean(0).to(view.device)
        return Reconstruction(mean.expand(len(seen), *mean.shape).clone(), prepared.diagnostics)
    features = seen.features.to(view.device)
    statistics = (prepared.tensors["mean"], prepared.tensors["deviation"])
    decoder = network.build(view, tuple(features.shape[1:]), statistics, seed=0)  # its weights are replaced
    decoder.load_state_dict(prepared.tensors)
    decoder.eval()
    size = fitting(forward_only(decoder), features[:1], most=_APPLIED)
    images = torch.cat(list(in_chunks(decoder, features, size=size, what=attack)))
    return Reconstruction(images.contiguous(), prepared.diagnostics)


def _seed(rng: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=rng, device=rng.device))


@dataclass(frozen=True)
class _Lesson:
    """All that training a decoder takes."""

    decoder: Decoder
    releases: PublicReleases
    pictures: _Pictures
    batches: _Batches
    objective: Objective
    judge: _Judge
    course: Course

    def train(self) -> tuple[list[float], int, bool]:
        """Rounds of growing length; gives validation losses, steps taken, and whether the last brought nothing."""
        curve, taken = [self.judge(self.decoder)], 0
        for number, passes in enumerate(_ROUNDS):
            before = min(curve)
            steps = max(_FEWEST * 2**number, passes * len(self.batches.index) // self.batches.size)
            found, spent = self.cycle(steps, 0.5**number)
            curve, taken = curve + found[1:], taken + spent
            if number and min(curve) > (1 - _GAIN) * before:
                return curve, taken, True
        return curve, taken, False

    def cycle(self, steps: int, height: float) -> tuple[list[float], int]:
        """One cycle of the rate, leaving the best weights; gives the validation losses and the steps taken."""
        decoder, course = self.decoder, self.course
        network = compiled(decoder) if course.compiled else decoder
        curve = [self.judge(decoder)]
        if steps == 0:
            return curve, 0
        # Adam moves every weight by the rate, so a neuron with thousands of inputs moves too far.
        wide = [p for p in decoder.parameters() if p.ndim == 2]
        others = [p for p in decoder.parameters() if p.ndim != 2]
        rates = [height * course.learning_rate, height * course.learning_rate / 5]
        groups = [{"params": others}, {"params": wide}]
        optimizer = torch.optim.AdamW(groups, weight_decay=course.weight_decay, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps + 1, pct_start=_WARM_UP)
        best, best_state, taken = curve[0], _copied(decoder), 0
        since = 0
        looks = {round(steps * (look + 1) / _CHECKS) for look in range(_CHECKS)}
        with progress.stage("decoder", steps) as bar:
            for taken in range(1, steps + 1):
                index = self.batches.next()
                decoder.train()
                released = self.releases.draw(index)
                with computing(course.precision, released.device):
                    error = self.objective(network(released).float(), self.pictures(index), released)
                optimizer.zero_grad()
                with denormals_as_zero():
                    error.backward()
                nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                bar.advance()
                if taken in looks:
                    curve.append(self.judge(decoder))
                    since += 1
                    if curve[-1] < best:
                        best, best_state, since = curve[-1], _copied(decoder), 0
                    # Rounds of growing length end by what they bring, not by patience.
                    if since == course.patience and course.steps is not None:
                        break
        decoder.load_state_dict(best_state)
        return curve, taken


class _Pictures:
    """The public pictures on the device: kept there when they fit, else fetched as they are asked for."""

    def __init__(self, view: View) -> None:
        self.device, self.kept = view.device, resident(view.public.images, view.device)

    def __call__(self, index: Tensor) -> Tensor:
        return rows_of(self.kept, index, self.device)


class _Judge:
    """The loss on the attacker's own validation slice, under one draw of the release."""

    def __init__(self, loss: Loss, features: Tensor, images: Tensor) -> None:
        self.loss, self.features, self.images = loss, features, images

    @torch.no_grad()
    def __call__(self, decoder: Decoder) -> float:
        decoder.eval()
        return float(self.loss(decoder(self.features), self.images))


class _Batches:
    """Every picture once before any comes again."""

    def __init__(self, index: Tensor, size: int, rng: torch.Generator) -> None:
        self.index, self.size, self.rng = index, min(size, len(index)), rng
        self.left = index[:0]

    def next(self) -> Tensor:
        if len(self.left) < self.size:
            order = torch.randperm(len(self.index), generator=self.rng, device=self.rng.device).to(self.index.device)
            self.left = self.index[order]
        batch, self.left = self.left[: self.size], self.left[self.size :]
        return batch


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}
