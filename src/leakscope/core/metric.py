"""Metrics: one number per image; averaging happens elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor

from leakscope.core.results import MetricInfo
from leakscope.core.spec import Kind


@dataclass(frozen=True)
class Reference:
    """What a metric may read besides guess and truth."""

    class_mean: Tensor  # N×C×H×W: for each victim, the mean public picture of its class
    root: Path | None = None  # where weights of perceptual networks live


class Scored(ABC):
    """Something that is measured of reconstructions: a frozen dataclass; `name` is how a report calls it."""

    kind_name: ClassVar[str]
    revision: ClassVar[int]
    #: The goal whose reconstructions it measures.
    goal: ClassVar[str] = "pictures"
    #: Which end of the scale means that more was given away.
    more_leak: ClassVar[Literal["high", "low"]]
    #: The least and the largest limit that a gate may set on it for pictures; None: there is none.
    limits: ClassVar[tuple[float | None, float | None]] = (None, None)
    #: One number for the whole set (FID), not for each image.
    of_set: ClassVar[bool] = False
    #: Also measures points that are not pictures, whose values are not confined to [0, 1].
    of_points: ClassVar[bool] = False

    def unavailable(self, root: Path | None) -> str | None:
        """Why this metric cannot be computed here, with the remedy; None when it can."""
        return None

    @property
    def name(self) -> str:
        return self.kind_name

    @property
    def info(self) -> MetricInfo:
        what = (type(self).__doc__ or "").strip().splitlines()[0]
        return MetricInfo(self.name, self.more_leak, what, self.of_set)


class Metric(Scored):
    """A measure of pictures against the pictures that they were rebuilt from."""

    @abstractmethod
    def __call__(self, guess: Tensor, truth: Tensor, reference: Reference) -> Tensor:
        """N values, or one when `of_set`. Pictures are float32 NCHW in [0, 1]."""


METRICS: Kind[Scored] = Kind("metric", "leakscope.metrics")
