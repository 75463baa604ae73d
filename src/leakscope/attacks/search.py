"""White-box search: the picture whose features come closest to those seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from leakscope.attacks._expectation import Expected, ReleaseModel, learn_release
from leakscope.attacks._memory import at_once
from leakscope.attacks._release import child
from leakscope.attacks.peeling.lbfgs import Minimum, Objective, minimise
from leakscope.attacks.ridge import Ridge
from leakscope.core import progress
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.chunks import in_chunks
from leakscope.core.results import Diagnostics
from leakscope.core.spec import LATER
from leakscope.core.threat import Access, View
from leakscope.nn.curves import mean_where_finite

_CHUNK = 64  # pictures searched at once, if they fit
_KEPT = 60  # picture-sized tensors of an L-BFGS search: 20 pairs, and what a line search holds
_PROBES = 32  # pictures on which the release is studied
_LEAST_TV = 3e-3  # decides among the many pictures that fit when features are few; elsewhere it still leaves 60 dB
_NATURAL_TV = 0.02  # mean squared pixel difference when no public picture tells better

Distance = Literal["normalised", "mse", "l1", "l2"]
Optimizer = Literal["lbfgs", "adam", "sgd", "momentum"]


@ATTACKS.register("search")
@dataclass(frozen=True)
class Search(Attack):
    """Finds, by gradient descent on pixels, the picture whose expected release matches the one seen.

    min_x d(E[release(encoder(x))], z) + tv·TV_β(x) + norm·‖x − c‖_α^α over x in [0, 1]

    TV_β = Σ(δx² + δy²)^{β/2}; c is the mean public picture x̄, or grey, and with `toward="zero"` black, as the
    weight decay of an optimiser has it. Both priors are averaged over pixels, except beside the distances `l1` and
    `l2`, which are sums themselves. `tv=None` sets the weight that the noise of the release calls for: noise
    variance over the variance of pixel differences, the maximum a posteriori weight of Gaussian noise under a
    Gaussian prior, and a little where there is none. The best of `restarts` starts (x̄, then public pictures) by
    objective is kept for each image. `start="linear"` begins with what `ridge` makes of the release instead of x̄,
    for encoders through which descent from x̄ ends in local minima, such as two sparse
    layers; it needs public pictures and queries.

    Mahendran & Vedaldi, "Understanding deep image representations by inverting them", 2015; He,
    Zhang & Lee, "Model inversion attacks against collaborative inference", 2019.

    Differs from the papers: L-BFGS by default, pixels are kept in [0, 1] by projection, and the
    objective matches the release that the defence is expected to make, not the clean features.
    """

    distance: Distance = "normalised"
    optimizer: Optimizer = "lbfgs"
    steps: int = 120
    learning_rate: float = 0.01  # not used by lbfgs
    tv: float | None = None
    tv_power: float = 2.0
    norm: float = 0.0
    norm_power: float = 2.0
    toward: Literal["mean", "zero"] = field(default="mean", metadata=LATER)  # where `norm` pulls
    restarts: int = 1
    draws: int = 8
    start: Literal["mean", "linear"] = field(default="mean", metadata=LATER)

    needs: ClassVar[frozenset[Access]] = frozenset({Access.FEATURES, Access.ENCODER})
    white_box: ClassVar[bool] = True
    averages_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or self.restarts < 1 or self.draws < 1:
            raise ValueError("steps must be 0 or more, restarts and draws 1 or more")
        if self.learning_rate <= 0:
            raise ValueError("learning_rate must be positive, such as 0.01")
        if (self.tv is not None and self.tv < 0) or self.norm < 0:
            raise ValueError("tv and norm are weights of penalties: 0 or more")
        if self.tv is None and self.distance in _SUMS:
            raise ValueError("tv=None needs a squared distance, normalised or mse; give tv a number beside l1 and l2")
        if self.tv_power < 1 or self.norm_power < 1:
            raise ValueError("tv_power and norm_power must be 1 or more")

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        if seen.features is None:
            raise ValueError("search rebuilds observed inputs; it was handed no features")
        probes = view.public.images[:_PROBES].to(view.device) if "public" in view else _noise_images(view, rng)
        with torch.no_grad():
            clean = view.encoder(probes)
        model = learn_release(view.defense, clean, self.draws, rng)
        low, high = (0.0, 1.0) if "public" not in view or view.public.pixels else (-math.inf, math.inf)

        parts = []
        with progress.stage("search", len(seen)) as bar:
            size = at_once(view, _CHUNK, kept=_KEPT)
            found = in_chunks(
                lambda chunk, first: self._search(view, chunk, first, model, rng, low, high),
                seen.features, self._first(view, seen, rng), size=size, what="search", rngs=(rng,),
            )  # fmt: skip
            for part in found:
                parts.append(part)
                bar.advance(len(part[0]))
        images = torch.cat([images for images, _, _, _ in parts])
        value = torch.cat([value for _, value, _, _ in parts])
        curves = torch.tensor([_lengthened(curve, self.steps + 1) for _, _, curve, _ in parts])
        zero = torch.cat([zero for _, _, _, zero in parts])
        return Reconstruction(
            images,
            Diagnostics(
                curve=tuple(_thinned(curves.mean(0).tolist())),
                zero_gradient=float(zero.float().mean()),
                diverged=float((~value.isfinite()).float().mean()),
                objective=float(value[value.isfinite()].mean()) if value.isfinite().any() else None,
            ),
        )

    def _first(self, view: View, seen: Observed, rng: torch.Generator) -> Tensor:
        """The first start of every picture."""
        center = _center(view).expand(len(seen), *view.image_shape)
        if self.start == "linear" and "public" in view and Access.QUERY in view:
            ridge = Ridge()
            linear = ridge.reconstruct(view, ridge.prepare(view, rng), seen, rng).images
            return torch.where(linear.isfinite(), linear, center)
        return center

    def _search(
        self,
        view: View,
        seen: Tensor,
        first: Tensor,
        model: ReleaseModel,
        rng: torch.Generator,
        low: float,
        high: float,
    ) -> tuple[Tensor, Tensor, list[float], Tensor]:
        """Images, objective, curve, and which images have no gradient through the release itself."""
        seen = seen.to(view.device)
        center = _center(view)
        problem = _Problem(
            view.encoder,
            model.expected,
            seen,
            model.informative(seen),
            center,
            self,
            self._tv_weight(view, seen, model),
            self.tv > 0 if self.tv is not None else self.distance == "normalised" or model.noise > 0,
        )
        zero = _no_gradient(view, first, seen, rng)
        best: Minimum | None = None
        for restart in range(self.restarts):
            start = first if restart == 0 else _another_start(view, len(seen), rng)
            found = OPTIMIZERS[self.optimizer](problem, start.flatten(1), self, low, high)
            if best is None:
                best = found
            else:
                better = found.value < best.value
                x = torch.where(better[:, None], found.x, best.x)
                curve = found.curve if found.curve[-1] < best.curve[-1] else best.curve
                best = Minimum(x, torch.minimum(found.value, best.value), curve, best.evaluations + found.evaluations)
        assert best is not None
        return best.x.reshape(first.shape), best.value, best.curve, zero

    def _tv_weight(self, view: View, seen: Tensor, model: ReleaseModel) -> Tensor:
        if self.tv is not None:
            return torch.tensor(self.tv, device=view.device)
        variance = _NATURAL_TV
        if "public" in view:
            pixels = view.public.images[:256]
            variance = max(float(_total_variation(pixels, 2.0).sum()) / pixels.numel(), 1e-6)
        # −log posterior = ‖F − z‖²/2σ² + Σ|δx|²/2s², times what makes its first term this distance.
        informative = model.informative(seen)
        energy = (seen * informative).square() if self.distance == "normalised" else informative
        weight = math.prod(view.image_shape) * model.noise / (variance * energy.flatten(1).sum(1).clamp_min(1e-12))
        return weight.clamp_min(_LEAST_TV if self.distance == "normalised" else 0.0)


@dataclass(frozen=True)
class _Problem:
    """The objective of every image and its gradient."""

    encoder: nn.Module
    expected: Expected
    seen: Tensor
    informative: Tensor
    center: Tensor
    settings: Search
    tv: Tensor  # one weight, or one per image
    smooths: bool  # whether any of them is above zero

    def __call__(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        images = x.detach().reshape(len(x), *self.center.shape[1:]).requires_grad_()
        with torch.enable_grad():
            value = self._value(images, rows)
            (gradient,) = torch.autograd.grad(value.sum(), images)
        return value.detach(), gradient.flatten(1)

    def _value(self, images: Tensor, rows: Tensor) -> Tensor:
        settings = self.settings
        expected = self.expected(self.encoder(images), rows, len(self.seen))
        informative = self.informative[rows]
        seen = (self.seen[rows] * informative).flatten(1)
        value = DISTANCES[settings.distance]((expected * informative).flatten(1) - seen, seen)
        scale = 1.0 if settings.distance in _SUMS else 1 / images[0].numel()
        tv = self.tv[rows] if self.tv.ndim else self.tv
        if self.smooths:
            value = value + scale * tv * _total_variation(images, settings.tv_power)
        if settings.norm > 0:
            away = (images if settings.toward == "zero" else images - self.center).flatten(1).abs()
            value = value + scale * settings.norm * away.pow(settings.norm_power).sum(1)
        return value


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normalised": lambda gap, seen: gap.square().sum(1) / seen.square().sum(1).clamp_min(1e-12),
    "mse": lambda gap, seen: gap.square().mean(1),
    "l1": lambda gap, seen: gap.abs().sum(1),
    # The root has no gradient at a perfect match.
    "l2": lambda gap, seen: (gap.square().sum(1) + 1e-20).sqrt(),
}
_SUMS = {"l1", "l2"}


def _total_variation(images: Tensor, power: float) -> Tensor:
    """Σ(δx² + δy²)^{β/2} for each image; differences across the border are zero."""
    across = nn.functional.pad(images[..., :, 1:] - images[..., :, :-1], (0, 1))
    down = nn.functional.pad(images[..., 1:, :] - images[..., :-1, :], (0, 0, 0, 1))
    squared = across.square() + down.square()
    if power != 2:
        squared = (squared + 1e-12).pow(power / 2)  # below β = 2 the root has no gradient at zero
    return squared.flatten(1).sum(1)


def _by_lbfgs(objective: Objective, start: Tensor, settings: Search, low: float, high: float) -> Minimum:
    return minimise(objective, start, iterations=settings.steps, low=low, high=high, solved=1e-8)


def _by_steps(build: Callable[[list[Tensor], float], torch.optim.Optimizer]) -> Callable[..., Minimum]:
    """A first-order method with projection; each row keeps the best place it has been."""

    def run(objective: Objective, start: Tensor, settings: Search, low: float, high: float) -> Minimum:
        x = start.detach().clone().clamp(low, high)
        optimizer = build([x], settings.learning_rate)
        rows = torch.arange(len(x), device=x.device)
        best_x, best_value = x.clone(), torch.full((len(x),), math.inf, device=x.device)
        curve: list[Tensor] = []  # read at the end: an accelerator would wait for each value
        for step in range(settings.steps + 1):
            value, gradient = objective(x, rows)
            usable = value.isfinite() & gradient.isfinite().all(1)
            better = usable & (value < best_value)
            best_x = torch.where(better[:, None], x, best_x)
            best_value = torch.where(better, value, best_value)
            curve.append(mean_where_finite(best_value))
            if step < settings.steps:
                x.copy_(torch.where(usable[:, None], x, best_x))  # back to where it was last well
                x.grad = torch.where(usable[:, None], gradient, 0.0)
                optimizer.step()
                x.clamp_(low, high)
        told = [math.inf if math.isnan(mean) else mean for mean in torch.stack(curve).tolist()]
        return Minimum(best_x, best_value, told, len(x) * (settings.steps + 1))

    return run


OPTIMIZERS: dict[str, Callable[[Objective, Tensor, Search, float, float], Minimum]] = {
    "lbfgs": _by_lbfgs,
    "adam": _by_steps(lambda x, rate: torch.optim.Adam(x, rate, eps=1e-3, amsgrad=True)),
    "sgd": _by_steps(lambda x, rate: torch.optim.SGD(x, rate)),
    "momentum": _by_steps(lambda x, rate: torch.optim.SGD(x, rate, momentum=0.9)),
}

#: Published settings, after `spec/cem.md`, `spec/mixcon.md` and `spec/peel.md`; `replace` a field to vary one.
PRESETS: dict[str, Search] = {
    # rMLE; the weight of TV is 0 after the first convolution, 10 and 1000 after deeper ones.
    "he2019": Search("mse", "adam", steps=5000, learning_rate=0.01, tv=0.0),
    "he2019-deep": Search("mse", "adam", steps=5000, learning_rate=0.01, tv=10.0),
    "mahendran-vedaldi": Search(
        "normalised", "momentum", steps=200, learning_rate=1.0, tv=1.5, norm=1.5, norm_power=6.0
    ),
    # Weight decay 1e-4 is the gradient of ½·1e-4·‖x‖². The published rate of 10 overshoots at the scale of our
    # features (SSIM 0.30 on the attacker's own pictures, undefended LeNet-5 on MNIST at block2), 0.4 gives 0.65 where
    # 0.64 is published. It is no strong attack: 0.01 gives 0.88, and `search` with its defaults 0.97.
    "mixcon": Search("l2", "sgd", steps=500, learning_rate=0.4, tv=1e-5, tv_power=1.0, norm=5e-5, toward="zero"),
    "mixcon-svhn": Search("l2", "sgd", steps=500, learning_rate=10.0, tv=1e-2, tv_power=1.0, norm=5e-5, toward="zero"),
    "mixcon-synthetic": Search("l1", "sgd", steps=500, learning_rate=0.01, tv=0.0, norm=5e-5, toward="zero"),
}


def _center(view: View) -> Tensor:
    if "public" in view:
        return view.public.images.mean(0, keepdim=True).to(view.device)
    return torch.full((1, *view.image_shape), 0.5, device=view.device)


def _noise_images(view: View, rng: torch.Generator) -> Tensor:
    return torch.rand(_PROBES, *view.image_shape, generator=child(rng, view.device), device=view.device)


def _another_start(view: View, count: int, rng: torch.Generator) -> Tensor:
    if "public" in view:
        images = view.public.images
        chosen = torch.randint(len(images), (count,), generator=rng, device=rng.device)
        return images[chosen.to(images.device)].to(view.device)
    generator = child(rng, view.device)
    return torch.rand(count, *view.image_shape, generator=generator, device=view.device)


def _no_gradient(view: View, start: Tensor, seen: Tensor, rng: torch.Generator) -> Tensor:
    """Which images get exactly no gradient through the release as it is (rounding, dead units)."""
    x = start.detach().clone().requires_grad_()
    with torch.enable_grad():
        released = view.defense.release(view.encoder(x), child(rng, view.device))
        if not released.requires_grad:
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        (gradient,) = torch.autograd.grad((released - seen).square().sum(), x, allow_unused=True)
    if gradient is None:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    return (gradient == 0).flatten(1).all(1)


def _lengthened(curve: list[float], length: int) -> list[float]:
    """A search that ended early stays where it ended."""
    return curve + [curve[-1]] * (length - len(curve))


def _thinned(curve: list[float], points: int = 25) -> list[float]:
    """At most `points` of a curve, evenly spaced, both ends included."""
    if len(curve) <= points:
        return curve
    return [curve[round(i * (len(curve) - 1) / (points - 1))] for i in range(points)]
