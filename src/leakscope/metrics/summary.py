"""From one number an image to what a report prints: mean, spread, interval, worst case."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from leakscope.core.results import Summary
from leakscope.core.seeds import generator

RESAMPLES = 2_000
LEVEL = 0.95
#: Numbers drawn at once; 10,000 images are then resampled without holding 20 million of them.
DRAWN_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def _numbers(values: Tensor) -> Tensor:
    flat = values.detach().cpu().double().flatten()
    if len(flat) == 0:
        raise ValueError("no values to summarise")
    bad = int((~flat.isfinite()).sum())
    if bad:
        raise ValueError(f"{bad} of {len(flat)} values are NaN or infinite; a metric went wrong")
    return flat


def _interval(values: Tensor, rng: torch.Generator) -> Interval:
    """Percentile bootstrap of the mean (Efron, 1979): the middle 95 % of the means of 2,000 resamples."""
    n, mean = len(values), values.mean()
    if n == 1:
        return Interval(float(mean), float(mean), float(mean), 1)
    deviations = values - mean  # equal values then give an interval of no width, to the last bit
    rounds = max(1, min(RESAMPLES, DRAWN_AT_ONCE // n))
    means = torch.cat(
        [
            deviations[torch.randint(n, (min(rounds, RESAMPLES - start), n), generator=rng)].mean(1)
            for start in range(0, RESAMPLES, rounds)
        ]
    )
    tail = (1 - LEVEL) / 2
    low, high = (means.quantile(torch.tensor((tail, 1 - tail), dtype=torch.float64)) + mean).tolist()
    return Interval(float(mean), low, high, n)


def summarize(values: Tensor, more_leak: Literal["high", "low"], seed: int) -> Summary:
    """Mean, standard deviation, bootstrap interval and worst case of one value for each image."""
    numbers = _numbers(values)
    interval = _interval(numbers, generator(seed, "bootstrap"))
    worst = {"high": numbers.max, "low": numbers.min}[more_leak]()
    std = float(numbers.std()) if len(numbers) > 1 else 0.0
    return Summary(interval.mean, std, interval.low, interval.high, float(worst), len(numbers))


def paired_difference(a: Tensor, b: Tensor, seed: int = 0) -> Interval:
    """The mean of a − b over the same images, with its bootstrap interval.

    What two attacks or two targets share on an image cancels, so the interval is narrower than the
    two summaries suggest. Claim a difference only when the interval excludes zero.
    """
    if a.shape != b.shape:
        raise ValueError(f"pairs need equally many values, not {tuple(a.shape)} and {tuple(b.shape)}")
    return _interval(_numbers(a) - _numbers(b), generator(seed, "bootstrap", "paired"))
