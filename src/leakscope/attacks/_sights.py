"""Ways of looking at released features: as they came, through simple transforms, and through the server's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.devices import widened
from leakscope.core.threat import Access, View
from leakscope.core.watching import LARGEST_SHOWN, thinned

RELEASED = "released"
_BEHIND = "behind "
_ANSWER = ", its answer"
_WIDEST = 16384  # columns above which features are sketched
_SKETCH = 4096  # columns of a sketch
_ROUNDING = 1e-6  # of a feature's size, that single precision may make of nothing
_LOUD = 8.0  # times the upper quartile of its channel's scales: a feature that is scaled by itself
FARTHEST = 6.0  # scales at which a feature is cut off: twice what was ever seen
_STRENGTHS = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
_BETTER = 0.75  # another sight must bring the error down to this share: networks make up for less
_BESIDE = 0.95  # one of few columns that joins the best must bring it down to this share only: it costs nothing
_FEW = 256  # columns
_WEIGHTS = (1.0, 30.0)  # of the columns of a sight that joins

#: What hides features from a linear reader without a server's help; a sight must earn its place on held-out pictures.
_TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "fraction": lambda z: z - z.round(),
    "logarithm": lambda z: z.sign() * z.abs().log1p(),
    "signs of zeros": lambda z: (z == 0) * torch.copysign(torch.ones_like(z), z),
}


def look(view: View, z: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Released features `z`, one batch as it came, seen in every way, or in the ways `names`."""
    wanted = None if names is None else list(names)
    sent = thinned(z, LARGEST_SHOWN)
    found: dict[str, Tensor] = {RELEASED: sent}
    found |= {name: change(sent) for name, change in _TRANSFORMS.items() if wanted is None or name in wanted}
    behind = [name.removeprefix(_BEHIND).removesuffix(_ANSWER) for name in wanted or () if name.startswith(_BEHIND)]
    if Access.HEAD in view and (wanted is None or behind):
        for name, output in view.behind(z, None if wanted is None else behind).items():
            if output.is_floating_point():
                found[_BEHIND + name] = output
                if output.ndim == 2 and output.shape[1] == view.classes:
                    found[_BEHIND + name + _ANSWER] = _answer(output)
    return found if wanted is None else {name: found[name] for name in wanted}


def _answer(scores: Tensor) -> Tensor:
    """Class scores as probabilities, and the class itself: what the label alone tells is linear in it."""
    return torch.cat((scores.softmax(1), F.one_hot(scores.argmax(1), scores.shape[1]).to(scores)), 1)


def feature_scale(flat: Tensor) -> Tensor:
    """What every feature is divided by: its deviation, or a third of its largest excursion where that is more.

    By its deviation alone a feature that is hardly ever active would be blown up by the first victim that activates
    it. Nor is a feature scaled up that varies by rounding only, about 10⁻⁷ of the size of what was summed up:
    rounding changes with the batch. Infinite for a feature that is constant.
    """
    away = flat - flat.mean(0)
    deviation = away.square().mean(0).sqrt()
    typical = torch.where(deviation > 0, deviation, torch.nan).nanmedian().nan_to_num(0.0, torch.inf)
    rounding = _ROUNDING * torch.maximum(typical, flat.mean(0).abs())
    scale = torch.maximum(torch.hypot(deviation, rounding), away.abs().amax(0) / 3)
    return torch.where(deviation > 0, scale, torch.inf)


@dataclass(frozen=True)
class Reader:
    """One sight as standardised columns: every feature has mean zero and deviation one, wide ones are sketched.

    A feature has a scale of its own, since one row of a map may hold noise of 10⁶ beside features of order one.
    """

    center: Tensor  # D, in double precision
    scale: Tensor
    weight: float = 1.0  # of its columns beside those of other sights: a ridge shrinks the lighter ones more

    @classmethod
    def of(cls, features: Tensor) -> Reader:
        flat = widened(features).flatten(1)
        return cls(flat.mean(0), feature_scale(flat))

    @classmethod
    def by_channel(cls, features: Tensor) -> Reader:
        """One centre and scale for each channel of a map, or of tokens; for a network.

        What a filter reads at one place must mean the same at another, so places are not scaled one by one; only a
        feature far louder than its channel keeps a centre and scale of its own. Vectors are read feature by feature.
        """
        own = cls.of(features)
        if features.ndim not in (3, 4):
            return own
        center, scale = (tensor.view(features.shape[1:]) for tensor in (own.center, own.scale))
        channel = 0 if features.ndim == 4 else 1
        center, scale = (tensor.movedim(channel, 0).flatten(1) for tensor in (center, scale))  # channels×places
        deviation = widened(features).square().mean(0).movedim(channel, 0).flatten(1) - center.square()
        moving = scale.isfinite()
        quartile = torch.where(moving, scale, torch.nan).nanquantile(0.75, 1, keepdim=True)
        alike = ~(moving & (scale > _LOUD * quartile))
        shared = (center * alike).sum(1, keepdim=True) / alike.sum(1, keepdim=True)
        spread = ((deviation.clamp_min(0) + (center - shared).square()) * alike).sum(1, keepdim=True)
        width = (spread / alike.sum(1, keepdim=True)).sqrt()
        still = ~moving.any(1, keepdim=True) | (width <= _ROUNDING * shared.abs())
        width = torch.where(still, torch.inf, width)
        parts = (torch.where(alike, shared, center), torch.where(alike, width, scale))
        laid_out = [part.view(-1, *_places(features.shape[1:], channel)).movedim(0, channel) for part in parts]
        return cls(laid_out[0].flatten().contiguous(), laid_out[1].flatten().contiguous())

    def __call__(self, features: Tensor) -> Tensor:
        """Standardised features in the shape they came in, fit for a network."""
        flat = (widened(features).flatten(1) - self.center) / self.scale
        return flat.clamp(-FARTHEST, FARTHEST).to(features.device, torch.float32).view(features.shape)

    def columns(self, features: Tensor) -> Tensor:
        """N×D for a linear fit, in double precision; above a limit D random sums of signed columns (count sketch)."""
        flat = self.weight * ((widened(features).flatten(1) - self.center) / self.scale).clamp(-FARTHEST, FARTHEST)
        if flat.shape[1] <= _WIDEST:
            return flat
        rng = seeds.generator(0, "sketch", flat.shape[1])
        bucket = torch.randint(_SKETCH, (flat.shape[1],), generator=rng).to(flat.device)
        sign = torch.randint(2, (flat.shape[1],), generator=rng).to(flat) * 2 - 1
        return flat.new_zeros(len(flat), _SKETCH).index_add_(1, bucket, flat * sign)


def _places(shape: torch.Size, channel: int) -> list[int]:
    return [side for axis, side in enumerate(shape) if axis != channel]


@dataclass(frozen=True)
class Chosen:
    """The sights from which pictures can be read best, best first, with the weight of each one's columns."""

    weights: dict[str, float]
    errors: dict[str, float]  # held-out error of every sight, and of two together


def choose(sights: dict[str, Tensor], images: Tensor) -> Chosen:
    """Kernel ridge on some pictures, judged on others.

    The release itself stays unless another sight is clearly better; a second one joins when the two together are
    clearly better than the best alone, or when it has few columns and helps at all.
    """
    grams = _grams(sights)
    target = widened(images).flatten(1)
    errors = dict(zip(grams, _held_out_errors(grams.values(), target), strict=True))
    errors.setdefault(RELEASED, float("inf"))
    ranked = sorted(errors, key=errors.__getitem__)
    best = ranked[0] if errors[ranked[0]] < _BETTER * errors[RELEASED] else RELEASED
    answer = [name for name in ranked[3:] if name.endswith(_ANSWER)][:1]
    for other in [name for name in (*ranked[:3], *answer) if name != best]:
        if best not in grams or other not in grams:
            continue
        few = sights[other][0].numel() <= _FEW
        weights = _WEIGHTS if few else (1.0,)
        together = [grams[best] + w * w * grams[other] for w in weights]
        tried = dict(zip(weights, _held_out_errors(together, target), strict=True))
        weight = min(tried, key=tried.__getitem__)
        if tried[weight] < (_BESIDE if few else _BETTER) * errors[best]:
            errors[f"{best} + {other}"] = tried[weight]
            return Chosen({best: 1.0, other: _relative(sights, best, other) * weight}, errors)
    return Chosen({best: 1.0}, errors)


def _relative(sights: dict[str, Tensor], best: str, other: str) -> float:
    """What makes columns of two sights of different width weigh as much as each other, as their Gram matrices do."""
    return float((sights[best][0].numel() / sights[other][0].numel()) ** 0.5)


def _grams(sights: dict[str, Tensor]) -> dict[str, Tensor]:
    """ZZᵀ of the standardised columns, mean diagonal one, of every sight that is finite and moves."""
    found, usable = {}, []
    for name, features in sights.items():
        columns = Reader.of(features).columns(features)
        gram = columns @ columns.T
        level = gram.diagonal().mean()
        found[name] = gram / level
        usable.append((features.isfinite().all() & (level > 0)).to(features.device))
    kept: list[bool] = torch.stack(usable).tolist()  # an accelerator waits here, once
    return {name: gram for (name, gram), use in zip(found.items(), kept, strict=True) if use}


def held_out_error(features: Tensor, images: Tensor) -> float:
    """Least mean squared error of pictures read from features by ridge; infinite when nothing moves."""
    grams = _grams({RELEASED: features})
    return min(_held_out_errors(grams.values(), widened(images).flatten(1)), default=float("inf"))


def _held_out_errors(grams: Iterable[Tensor], target: Tensor) -> list[float]:
    """`_held_out_error` of each, for which an accelerator waits once."""
    errors = [_held_out_error(gram, target) for gram in grams]
    found: list[float] = torch.stack(errors).tolist() if errors else []
    return found


def _held_out_error(gram: Tensor, target: Tensor) -> Tensor:
    """Least mean squared error on the last fifth, over strengths, of kernel ridge fitted on the rest."""
    held = max(1, len(gram) // 5)
    fit, out = slice(0, len(gram) - held), slice(len(gram) - held, None)
    mean = target[fit].mean(0)
    values, vectors = torch.linalg.eigh(gram[fit, fit])
    projected = vectors.T @ (target[fit] - mean)
    seen = gram[out, fit] @ vectors
    level = values.clamp_min(0).mean()
    guesses = (mean + seen @ (projected / (values.clamp_min(0) + s * level)[:, None]) for s in _STRENGTHS)
    return torch.stack([(guess - target[out]).square().mean() for guess in guesses]).min()
