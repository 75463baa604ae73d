"""Training the correction of a linear picture, in rounds of growing length, until a longer round brings nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.attacks._correction import Correction, Size, bounded
from leakscope.attacks._linear import Linear
from leakscope.attacks._orthogonal import OrthogonalSteps
from leakscope.attacks._release import PublicReleases
from leakscope.attacks._sights import Reader, look
from leakscope.core import progress
from leakscope.core.threat import View
from leakscope.nn.denormals import denormals_as_zero

_COPY_BYTES = 2**30  # of all augmented copies together
_SHIFT = 14  # pictures are shifted by up to this part of their side
_GAIN = 0.02  # a round that lowers the validation error by less than this share is the last
_AVERAGED = 0.99  # of the weights' running mean stays after each step
_LEAST_STEPS = 80  # of the first round, however few pictures there are
_ORTHOGONAL = 5.0  # times the rate of Adam is that of the filters' orthogonal steps
_LOOKS = 4  # at the validation pictures, each round


@dataclass(frozen=True)
class Eyes:
    """What the attacker sees in a batch of released features: network input and linear picture."""

    view: View
    readers: dict[str, Reader]  # best sight first
    front: Reader  # of the best sight, for a network
    linear: Linear

    def columns(self, z: Tensor) -> Tensor:
        return self._columns(look(self.view, z, self.readers))

    def _columns(self, sights: dict[str, Tensor]) -> Tensor:
        return torch.cat([reader.columns(sights[name]) for name, reader in self.readers.items()], 1)

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the best sight as a network reads them, and the linear picture (not clamped)."""
        sights = look(self.view, z, self.readers)
        columns = self._columns(sights)
        first = next(iter(self.readers))
        return self.front(sights[first]), self.plausible(self.linear(columns).unflatten(1, self.view.image_shape))

    def plausible(self, linear: Tensor) -> Tensor:
        """No farther beyond the range of pixels than it is wide: one feature never seen active must not drown all."""
        low, high = pixel_bounds(self.view)
        return linear.clamp(2 * low - high, 2 * high - low)


def pixel_bounds(view: View) -> tuple[float, float]:
    """The range of pixels: known, or that of the public pictures."""
    images = view.public.images
    return (0.0, 1.0) if view.public.pixels else (float(images.min()), float(images.max()))


class Lessons:
    """Batches (input, linear picture, picture) without end: the public pictures, then copies shifted and mirrored.

    Copies are encoded once. For a public picture the linear picture is that of a fit without it: one that
    was fitted on it looks better than any victim's will. The release is drawn anew every time.
    """

    def __init__(
        self,
        eyes: Eyes,
        releases: PublicReleases,
        ours: Tensor,
        offsets: Tensor,
        copies: int,
        batch: int,
        rng: torch.Generator,
    ) -> None:
        self.eyes, self.releases, self.ours, self.offsets = eyes, releases, ours, offsets
        self.batch, self.rng = batch, rng
        self.copies = copies if releases.fresh else 0
        self._encoded: list[tuple[Tensor, Tensor]] = []
        self._taken, self._left = 0, ours[:0]

    @property
    def steps(self) -> int:
        """Of one pass."""
        return max(1, len(self.ours) // self.batch)

    @torch.no_grad()
    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        size = min(self.batch, len(self.ours))
        if len(self._left) < size:
            self._left = torch.randperm(len(self.ours), generator=self.rng, device=self.rng.device).cpu()
            self._taken += 1
        place, self._left = self._left[:size], self._left[size:]
        copy_ = (self._taken - 1) % (self.copies + 1)
        if copy_ == 0:
            index = self.ours[place]
            features, linear = self.eyes(self.releases.draw(index))
            known = (place < len(self.offsets)).to(linear)  # a wide fit is made on fewer pictures
            offset = self.offsets[place.clamp_max(len(self.offsets) - 1)] * known[:, None]
            left_out = self.eyes.plausible(linear + offset.unflatten(1, linear.shape[1:]))
            return features, left_out, self.releases.images(index)
        clean, images = self._copy(copy_ - 1)
        features, linear = self.eyes(self.releases.again(clean[place]))
        return features, linear, images[place].to(linear)

    def _copy(self, number: int) -> tuple[Tensor, Tensor]:
        while len(self._encoded) <= number:
            images = _changed(self.releases.images(self.ours), self.rng)
            clean = torch.cat([self.releases.clean(chunk) for chunk in images.split(256)])
            self._encoded.append((clean, images))
            fitting = _COPY_BYTES // max(1, (clean.numel() + images.numel()) * 4)
            self.copies = min(self.copies, max(1, int(fitting)))
        return self._encoded[number]


def _changed(images: Tensor, rng: torch.Generator) -> Tensor:
    """Shifted by whole pixels, edges repeated; colour pictures mirrored every other time."""
    side = max(1, max(images.shape[2:]) // _SHIFT)
    count, _, height, width = images.shape
    moves = torch.randint(-side, side + 1, (2, count), generator=rng, device=rng.device).to(images.device)
    rows = (torch.arange(height, device=images.device) + moves[0][:, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + moves[1][:, None]).clamp(0, width - 1)
    if images.shape[1] == 3:
        mirrored = torch.rand(count, generator=rng, device=rng.device).to(images.device) < 0.5
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    each = torch.arange(count, device=images.device)[:, None, None]
    return images.movedim(1, 3)[each, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()


@dataclass(frozen=True)
class Judge:
    """The attacker's own validation pictures under one draw of the release."""

    features: Tensor
    linear: Tensor
    images: Tensor
    bounds: tuple[float, float]
    unit: float  # the error of the linear picture: what a correction is measured in

    @torch.no_grad()
    def guess(self, network: Correction | None) -> Tensor:
        return corrected(network, self.features, self.linear, self.unit, self.bounds)

    def __call__(self, network: Correction | None) -> float:
        return float((self.guess(network) - self.images).square().mean())


@torch.no_grad()
def corrected(
    network: Correction | None, features: Tensor, linear: Tensor, unit: float, bounds: tuple[float, float]
) -> Tensor:
    """The linear picture with its correction, in the range of pixels."""
    if network is None:
        return linear.clamp(*bounds)
    network.eval()
    parts = zip(features.split(256), linear.split(256), strict=True)
    return torch.cat([(base + unit * network(z, base)).clamp(*bounds) for z, base in parts])


class Run:
    """One network in training, with the running mean of its weights, which is what is judged and kept."""

    def __init__(self, network: Correction, judge: Judge, lessons: Lessons, rate: float) -> None:
        self.network, self.judge, self.lessons, self.rate = network, judge, lessons, rate
        self.mean = copy.deepcopy(network)
        self.weights, self.means = list(network.parameters()), list(self.mean.parameters())
        filters = [p for p in self.weights if p.ndim == 4 and p is not network.last.weight]
        wide = [p for p in self.weights if p.ndim == 2]
        others = [p for p in self.weights if p.ndim == 1 or p is network.last.weight]
        # Adam moves every weight by the rate, so a neuron with thousands of inputs moves too far.
        groups = [{"params": others, "share": 1.0}, {"params": wide, "share": 0.2}]
        adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=rate, weight_decay=1e-4, fused=True)
        steps = OrthogonalSteps([{"params": filters, "share": _ORTHOGONAL}], lr=rate)
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (adam, steps)
        self.taken = 0
        self.error = judge(self.mean)

    def step(self, rate: float) -> None:
        features, linear, images = self.lessons.next()
        self.network.train()
        guess = bounded(linear + self.judge.unit * self.network(features, linear), *self.judge.bounds, training=True)
        error = (guess - images).square().mean() / self.judge.unit**2
        self.network.zero_grad()
        with denormals_as_zero():
            error.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]
            optimizer.step()
        self.taken += 1
        kept = min(_AVERAGED, (1 + self.taken) / (10 + self.taken))
        with torch.no_grad():
            torch._foreach_lerp_([*self.means], [*self.weights], 1 - kept)

    def round(self, steps: int, on_look: Callable[[float], bool]) -> bool:
        """One fall of the rate to a fiftieth, along a cosine; False when `on_look` asks to stop."""
        looks = {max(1, round(steps * (number + 1) / _LOOKS)) for number in range(_LOOKS)}
        warm = max(1, steps // 10)
        with progress.stage("auto", steps) as bar:
            for number in range(1, steps + 1):
                fall = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * number / steps))
                self.step(self.rate * fall * min(1.0, number / warm))
                bar.advance()
                if number in looks:
                    self.error = self.judge(self.mean)
                    if not on_look(self.error):
                        return False
        return True


@dataclass(frozen=True)
class Learnt:
    """The best network found; None when no correction beat the linear picture."""

    network: Correction | None
    size: Size
    error: float
    converged: bool
    steps: int
    raced: dict[str, float]


def learn(
    judge: Judge,
    lessons: Lessons,
    candidates: list[tuple[Size, float]],
    passes: tuple[float, float],
    least: tuple[float, float],
    on_look: Callable[[float], bool],
    seed: int,
) -> Learnt:
    """Race the candidates over a short while, then train the winner in rounds, each twice as long as the last.

    `passes` are those of the first round, and of all together at most. Training ends with a round that lowers the
    validation error by less than a fiftieth, or by less than `least[0]`. It has converged when it ended so, or when
    its last round gained less than `least[1]` for each doubling of all passes made.
    """
    image = tuple(judge.images.shape[1:])
    shape = tuple(judge.features.shape[1:])
    runs = [
        Run(size.build(shape, (image[0], image[1], image[2]), seed).to(judge.images.device), judge, lessons, rate)
        for size, rate in candidates
    ]
    first = max(_LEAST_STEPS, round(passes[0] * lessons.steps))
    raced: dict[str, float] = {}
    if len(runs) > 1:
        for run, (size, rate) in zip(runs, candidates, strict=True):
            run.round(max(8, first // 4), lambda error: True)
            raced[f"{'dense' if size.dense else 'map'} {size.width}, rate {rate:g}"] = run.error
    run, (size, _) = min(zip(runs, candidates, strict=True), key=lambda pair: pair[0].error)
    start = judge(None)
    best, kept = start, None
    length, left, converged = first, max(first, round(passes[1] * lessons.steps) - run.taken), False
    while 2 * left > first:  # a tail of a few steps is no round
        before = run.taken
        going = run.round(min(length, left), on_look)
        left -= length
        gained = best - run.error
        if gained > 0:
            best, kept = run.error, copy.deepcopy(run.mean)
        doublings = math.log2(run.taken / before) if before else math.inf
        flat = gained < max(_GAIN * (best + max(gained, 0.0)), least[0])
        converged = going and (flat or (before > 0 and gained < least[1] * doublings))
        if flat or not going:
            break
        length *= 2
    return Learnt(kept, size, best, converged, run.taken, raced)
