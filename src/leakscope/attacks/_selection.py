"""Choosing among candidates by what the target itself says of them, never by what an evaluator would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks._draws import ClassDraws
from leakscope.attacks._views import NUMBERS, Views
from leakscope.core import seeds
from leakscope.core.prior import Generator

_BATCH = 256  # candidates judged at once

#: Pictures → how much the target takes each for each class, N×K.
Judge = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pool:
    """Styles drawn from the prior, and how much the target takes each for each class."""

    styles: Tensor  # N×style
    values: Tensor  # N×K

    def best(self, classes: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """For each class the `count` styles it likes most, best first, and their values."""
        values, index = self.values[:, classes].topk(count, dim=0)
        return self.styles[index.T], values.T


@torch.no_grad()
def draw_pool(
    generator: Generator,
    count: int,
    truncation: float,
    seed: int,
    judge: Judge,
    box: tuple[Tensor, Tensor] | None = None,
) -> Pool:
    """`count` random styles, clipped to the box if there is one, and judged.

    They do not depend on the classes, so all classes share them.
    """
    rng = seeds.generator(seed, "pool")
    styles, values = [], []
    for size in [_BATCH] * (count // _BATCH) + [count % _BATCH] * (count % _BATCH > 0):
        w = generator.to_style(generator.sample(size, rng), truncation)
        w = w if box is None else w.clamp(*box)
        styles.append(w)
        values.append(judge(generator.from_style(w)))
    return Pool(torch.cat(styles), torch.cat(values))


@torch.no_grad()
def robust_confidence(
    images: Tensor, classes: Tensor, scores: Callable[[Tensor], Tensor], views: Views, count: int, draws: ClassDraws
) -> Tensor:
    """Mean softmax of its class over `count` random views of each picture (class-major rows)."""
    each = len(images) // len(classes)
    labels = classes.repeat_interleave(each)[:, None]
    total = torch.zeros(len(images), device=images.device)
    for _ in range(count):
        uniform = draws.uniform(each, NUMBERS).flatten(0, 1)
        total += scores(views(images, uniform)).softmax(1).gather(1, labels).squeeze(1)
    return total / max(count, 1)


def top_of_each_class(images: Tensor, values: Tensor, classes: int, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of each class's rows, best first, class-major; and their row numbers."""
    each = len(images) // classes
    index = values.view(classes, each).topk(count, dim=1).indices
    rows = (index + each * torch.arange(classes, device=index.device)[:, None]).flatten()
    return images[rows], rows
