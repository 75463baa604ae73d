"""What `auto` does before it sees a victim: stage after stage, each judged on pictures of the attacker's own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks._correction import Size, keeps_places
from leakscope.attacks._expectation import ReleaseModel, learn_release
from leakscope.attacks._linear import Linear, fit
from leakscope.attacks._price import price
from leakscope.attacks._refine import Held, refine
from leakscope.attacks._release import PublicReleases, child
from leakscope.attacks._residual import Eyes, Judge, Learnt, Lessons, learn, pixel_bounds
from leakscope.attacks._residual_target import residual_solver
from leakscope.attacks._sights import Reader, choose, look
from leakscope.attacks.e2e_lbfgs import EndToEnd
from leakscope.core.attack import Observed, Prepared
from leakscope.core.errors import UsageError
from leakscope.core.spec import describe
from leakscope.core.threat import Encoder, View
from leakscope.core.watching import thinned

_MOST_AT_ONCE, _NUMBERS_AT_ONCE = 256, 2**27  # releases seen at once, as they come; and all that is seen of them
_HELD = 0.15  # share of the public pictures on which everything is chosen
_RANKED = 512  # pictures on which sights are compared
_RANKED_NUMBERS = 2**20  # of a picture, in all sights together, by which these are compared
_LARGEST = 2500  # side of the largest linear system; with more columns it caps the rows
_PROBES = 32  # pictures on which a release is studied
_TRIED = 32  # validation pictures on which a refinement is tried
_VICTIMS = 64  # pictures that a refinement is expected to be asked for
_SOLVED, _SOLVING = 8, 120  # validation pictures on which a solver is tried, and iterations that it takes
_LEAST_ITERATIONS = 10
_HELPS = 0.98  # a refinement must bring the error down to this share
_TIE = 0.005  # leak that twice the training must gain to be worth it
_NEARLY = 0.97  # validation leak after a few steps of refinement from which more steps may leave nothing to learn
ENOUGH = 0.99  # validation leak above which it does not matter whether more could be gained


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    passes: tuple[float, float]  # over the pictures: in the first round, and in all
    copies: int  # of every picture, shifted
    draws: int  # of a random release, in the linear fit
    batch: int
    rates: tuple[float, ...]
    size: tuple[int, int]  # width and depth of the correction
    weights: tuple[float, ...]  # of the prior in a refinement
    iterations: tuple[int, int]  # of a refinement: tried first, and at most
    refining: float  # seconds, counted and not timed, that the longest refinement may cost
    settled: float  # leak: training that gained less in its last doubling has converged
    solved: float  # validation leak above which nothing more is tried


class Watch:
    """CPU seconds, the leak that was reached after them, and whether they are used up."""

    def __init__(self, start: float, limit: float | None, variance: float) -> None:
        self._start = start
        self._limit = limit
        self.variance = variance  # of validation pictures around the means of their classes
        self.anytime: list[tuple[float, float]] = []
        self.curve: list[float] = []

    def leak(self, error: float) -> float:
        return 1 - error / self.variance

    def note(self, error: float) -> bool:
        """Write down the best error so far; False when the time is up."""
        best = min([error, *self.curve[-1:]])
        self.curve.append(best)
        self.anytime.append((round(time.process_time() - self._start, 3), round(self.leak(best), 5)))
        return not self.over

    @property
    def over(self) -> bool:
        return self._limit is not None and time.process_time() - self._start > self._limit


@dataclass(frozen=True)
class Refinement:
    """A refinement that validation approved of."""

    held: Held
    kind: str
    weight: float
    iterations: int
    error: float  # on the pictures it was tried on
    before: float  # of the guesses it began with, on the same pictures


@dataclass
class Campaign:
    """The stages share what they found out; `plan` says what was chosen."""

    view: View
    effort: Effort
    releases: PublicReleases
    rng: torch.Generator
    watch: Watch
    ours: Tensor
    judge_index: Tensor
    released: Tensor  # of the validation pictures, one draw
    plan: dict[str, Any] = field(default_factory=dict)

    @property
    def chunk(self) -> int:
        return at_once(self.view, self.released[:1])

    @classmethod
    def begin(cls, view: View, effort: Effort, seconds: float | None, rng: torch.Generator) -> Campaign | None:
        """None when there are too few released pictures to learn from."""
        start = time.process_time()
        releases = PublicReleases(view, rng)
        count = len(releases)
        if count < 8:
            return None
        order = torch.randperm(count, generator=rng, device=rng.device).cpu()
        held = min(_MOST_AT_ONCE, max(2, round(_HELD * count)))
        ours, judged = order[held:], order[:held]
        images, labels = view.public.images, view.public.labels
        means = _class_means(images[ours], labels[ours], labels[judged])
        variance = float((images[judged] - means).square().mean())
        return cls(
            view,
            effort,
            releases,
            rng,
            Watch(start, seconds, max(variance, 1e-12)),
            ours,
            judged,
            releases.draw(judged),
        )

    def read(self) -> tuple[Eyes, Judge, Tensor]:
        """Stage 1: the sights that pictures can be read from, and ridge on them. Offsets come third."""
        ranked = self.ours[:_RANKED]
        # PyTorch takes other operations for some batches than for others; a sight must be there in all.
        lasting = set(look(self.view, self.released[:1])) & set(look(self.view, self.released[: self.effort.batch]))
        seen: dict[str, list[Tensor]] = {}
        for index in ranked.split(self.chunk):
            found = look(self.view, self.releases.draw(index))
            found = {name: features for name, features in found.items() if name in lasting}
            for name, features in found.items():
                seen.setdefault(name, []).append(thinned(features, max(4096, _RANKED_NUMBERS // len(found))))
        whole = {name: torch.cat(parts) for name, parts in seen.items()}
        sights = {name: features for name, features in whole.items() if len(features) == len(ranked)}  # in every batch
        chosen = choose(sights, self.releases.images(ranked))
        names = list(chosen.weights)
        self.plan |= {"sights": chosen.weights}
        self.plan |= {"sight_errors": {name: round(value, 6) for name, value in chosen.errors.items()}}
        del seen, whole
        width = sum(sights[name][0].numel() for name in names)
        del sights
        count = min(len(self.ours), _LARGEST) if width > _LARGEST else len(self.ours)
        draws = self.effort.draws if self.releases.random else 1
        draws = min(draws, max(1, _LARGEST // count)) if width > _LARGEST else draws
        eyes, columns = self._columns(chosen.weights, self.ours[:count], draws)
        pixels = self.releases.images(self.ours[:count]).flatten(1)
        fitted = fit(columns, pixels, draws, child(self.rng, columns.device))
        self.plan["strength"] = fitted.strength
        eyes = replace(eyes, linear=fitted.linear)
        low, high = pixel_bounds(self.view)
        features, linear = eyes(self.released)
        images = self.releases.images(self.judge_index)
        error = float((linear.clamp(low, high) - images).square().mean())
        judge = Judge(features, linear, images, (low, high), max(error**0.5, 1e-6))
        self.watch.note(error)
        return eyes, judge, fitted.offsets

    def _columns(self, weights: dict[str, float], index: Tensor, draws: int) -> tuple[Eyes, Tensor]:
        """Eyes without a linear picture yet, and what they see of `index`: all draws of a picture side by side.

        Scales come from all these pictures: a sparse feature may not be active in a few hundred.
        """
        names = list(weights)
        seen: dict[str, list[Tensor]] = {name: [] for name in names}
        for _ in range(draws):
            for chunk in index.split(self.chunk):
                for name, features in look(self.view, self.releases.draw(chunk), names).items():
                    seen[name].append(features)
        sights = {name: torch.cat(parts) for name, parts in seen.items()}
        readers = {name: replace(Reader.of(features), weight=weights[name]) for name, features in sights.items()}
        columns = torch.cat([readers[name].columns(features) for name, features in sights.items()], 1)
        eyes = Eyes(self.view, readers, Reader.by_channel(sights[names[0]]), Linear({}))
        return eyes, columns.unflatten(0, (draws, -1)).transpose(0, 1).flatten(0, 1)

    def correct(self, eyes: Eyes, judge: Judge, offsets: Tensor) -> Learnt:
        """Stage 2: a correction, trained until longer training brings nothing."""
        effort, view = self.effort, self.view
        lessons = Lessons(eyes, self.releases, self.ours, offsets, effort.copies, effort.batch, self.rng)
        shape = tuple(judge.features.shape[1:])
        kinds = [False] if keeps_places(shape, view.image_shape) else [True]
        candidates = [(Size(*effort.size, dense), rate) for dense in kinds for rate in effort.rates]
        seed = int(torch.randint(2**31, (1,), generator=self.rng, device=self.rng.device))
        variance = self.watch.variance
        least = (_TIE * variance, effort.settled * variance)
        found = learn(judge, lessons, candidates, effort.passes, least, self.watch.note, seed)
        self.plan |= {"steps": found.steps, "raced": found.raced, "passes": round(found.steps / lessons.steps, 2)}
        return found

    def study(self) -> ReleaseModel | None:
        """How the release follows from clean features; None without the encoder."""
        if not self.releases.at_home:
            return None
        with torch.no_grad():
            clean = self.view.encoder(self.releases.images(self.ours[:_PROBES]))
        return learn_release(self.view.defense, clean, 8, self.rng)

    def affordable(self, model: ReleaseModel, judge: Judge) -> int:
        """Iterations of a refinement that the effort pays for; 0 when they are too few to be of use."""
        pictures = judge.images[: min(_TRIED, len(judge.images))]
        rows = torch.arange(len(pictures), device=pictures.device)

        def once() -> None:
            x = pictures.clone().requires_grad_()
            with torch.enable_grad():
                model.expected(self.view.encoder(x), rows, len(x)).square().sum().backward()

        each = price(once) / len(pictures)
        iterations = int(self.effort.refining / (each * (_TRIED + _VICTIMS)))
        self.plan["price"] = round(1e3 * each, 4)
        return iterations if iterations >= _LEAST_ITERATIONS else 0

    def solve(self, judge: Judge, paid: int) -> None:
        """Keep the solver of a residual encoder, where there is one and it beats the linear picture on validation."""
        encoder, tried = self.view.encoder, min(_SOLVED, len(judge.images))
        affordable = paid * (_TRIED + _VICTIMS) >= _SOLVING * (_SOLVED + _VICTIMS)
        if not affordable or self.releases.random or not isinstance(encoder, Encoder):
            return
        solver = residual_solver(encoder.split, self.view.image_shape)
        if solver is None:
            return
        # Whether it leads anywhere shows without starting stuck pictures again, which takes longer than all else.
        once = replace(solver, restarts=False) if isinstance(solver, EndToEnd) else solver
        try:
            found = once.reconstruct(self.view, Prepared(), Observed(self.released[:tried]), self.rng)
        except UsageError:  # the defence sends something else than the encoder gives
            return
        truth = judge.images[:tried]
        error, before = (float((x[:tried] - truth).square().mean()) for x in (found.images, judge.guess(None)))
        if error < _HELPS * before:
            self.plan["solver"] = describe(solver)
            self.watch.note(judge(None) * error / before)

    def refined(
        self, model: ReleaseModel, judge: Judge, guess: Tensor, paid: int, *, thorough: bool
    ) -> Refinement | None:
        """Stage 3: the refinement with the least error on some validation pictures, if it helps there.

        Errors come from the other validation pictures. `paid` iterations are the most; where they are few, the
        first of them must already help.
        """
        tried = min(_TRIED, max(1, len(guess) // 2))
        errors = (guess - judge.images)[tried:].flatten(1)
        z, first, truth = self.released[:tried], guess[:tried], judge.images[:tried]
        whole = Held.whole(errors.shape[1])
        helds: dict[str, Held] = {"errors": Held.of_errors(errors, whole=whole)}
        if whole:
            helds["population"] = Held.of_pictures(self.releases.images(self.ours).flatten(1))
        before = float((first - truth).square().mean())

        def attempt(kind: str, weight: float, steps: int, start: Tensor | None = None) -> tuple[Refinement, Tensor]:
            pictures = refine(self.view, model, z, first, helds[kind], weight, steps, start=start)
            error = float((pictures - truth).square().mean())
            return Refinement(helds[kind], kind, weight, steps, error, before), pictures

        steps, most = (min(number, paid) for number in self.effort.iterations)
        # A few steps show which prior is right and whether the gradient leads anywhere.
        probes = [attempt(kind, 1.0, max(_LEAST_ITERATIONS, steps // 4)) for kind in helds]
        best, reached = min(probes, key=lambda probe: probe[0].error)
        if best.error >= (_HELPS if paid < self.effort.iterations[1] else 1.0) * before:
            return None
        if not thorough and self.watch.leak(best.error) < _NEARLY:
            return best if best.error < _HELPS * before else None
        for weight in self.effort.weights if thorough else (1.0,):
            found = attempt(best.kind, weight, steps)
            if found[0].error < best.error:
                best, reached = found
            if self.watch.over:
                break
        while thorough and 2 * best.iterations <= most and not self.watch.over:
            # As many steps again; a run in one go keeps its memory of curvature and comes at least as far.
            longer, pictures = attempt(best.kind, best.weight, best.iterations, start=reached)
            if longer.error > _HELPS * best.error:
                break
            best, reached = replace(longer, iterations=2 * best.iterations), pictures
        return best if best.error < _HELPS * before else None


def at_once(view: View, one: Tensor) -> int:
    """How many releases are looked at together: as many as fit in memory with all that the server makes of them."""
    numbers = sum(features.numel() for features in look(view, one).values())
    return max(1, min(_MOST_AT_ONCE, _NUMBERS_AT_ONCE // max(1, numbers)))


def _class_means(images: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
    """The mean picture of every wanted class; of all pictures when the class is not there."""
    found = {label: images[labels == label].mean(0) for label in labels.unique().tolist()}
    return torch.stack([found[label] if label in found else images.mean(0) for label in wanted.tolist()])
