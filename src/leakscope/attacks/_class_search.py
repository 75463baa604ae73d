"""What class attacks share: they take classes, work on a chunk of them at once, and say how it went."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.core import progress
from leakscope.core.attack import Attack, Observed, Reconstruction
from leakscope.core.chunks import in_chunks
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.prior import Prior
from leakscope.core.results import Diagnostics
from leakscope.core.threat import View
from leakscope.nn.curves import mean_of_finite, mean_where_finite, thinned

_ROWS = 128  # pictures under way at once: enough to keep a processor busy, few enough to fit its cache
_TOLD = 10  # figures that a progress bar shows in a search


class ClassAttack(Attack):
    """An attack on classes that searches the latents of a prior."""

    goal: ClassVar[str] = "identities"
    adapts: ClassVar[bool] = True

    prior: Prior

    def unsuited(self, split: SplitModel, image_shape: tuple[int, int, int]) -> str | None:
        try:
            self.prior.require(image_shape)
        except UsageError as error:
            return str(error)
        return None


def classes_of(seen: Observed, view: View, attack: str) -> Tensor:
    """The classes to rebuild, on the device where that happens."""
    if seen.classes is None:
        raise ValueError(f"{attack} rebuilds classes; it was handed none")
    if view.classes < 2:
        raise UsageError(f"{attack}: a target with one class tells no class from another; give it two")
    return seen.classes.to(view.device)


def require_queries(view: View, least: int, attack: str, remedy: str) -> None:
    """Refuse a budget that is too small to start."""
    if view.budget.left < least:
        raise UsageError(f"{attack} starts with {least} queries and {view.budget.left:.0f} are left; {remedy}")


@dataclass
class Course:
    """The objective of a chunk step by step, which rows had no gradient, and the bar that shows it all."""

    bar: progress.Bar
    told_every: int = 1  # steps between two figures of the bar: reading one makes an accelerator wait
    objective: list[Tensor] = field(default_factory=list)  # one scalar for each step, left where it was computed
    zero_gradient: Tensor | None = None

    def step(self, objective: Tensor, gradient: Tensor | None = None) -> None:
        """`objective` and `gradient` have one row for each picture under way, before the step is taken."""
        self.objective.append(mean_where_finite(objective))
        if self.zero_gradient is None and gradient is not None:
            self.zero_gradient = (gradient == 0).flatten(1).all(1)
        if len(self.objective) % self.told_every == 0:
            self.bar.advance(1, objective=float(self.objective[-1]))
        else:
            self.bar.advance(1)


#: Pictures (class-major) and their final objectives, for the classes of a chunk.
Search = Callable[[Tensor, Course], tuple[Tensor, Tensor]]


def rebuild(
    attack: str, classes: Tensor, *, per_class: int, rows: int | None, steps: int, search: Search
) -> Reconstruction:
    """Run `search` on chunks of classes, each class being `rows` pictures under way, and tell how it went.

    None takes all classes at once: a search that shares out a query budget must.
    """
    size = len(classes) if rows is None else max(1, _ROWS // rows)
    images, objectives, courses, sizes = [], [], [], []
    with progress.stage(attack, steps * -(-len(classes) // size)) as bar:

        def one(chunk: Tensor) -> tuple[Tensor, Tensor, Course, int]:
            course = Course(bar, max(1, steps // _TOLD))
            found, objective = search(chunk, course)
            return found.detach(), objective.detach(), course, len(chunk)

        # A search that spends queries does not get them back when it is repeated.
        parts = in_chunks(one, classes, size=size, what=attack) if rows is not None else [one(classes)]
        for found, objective, course, count in parts:
            images.append(found)
            objectives.append(objective)
            courses.append(course)
            sizes.append(count)
    return Reconstruction(torch.cat(images), _diagnostics(per_class, sizes, torch.cat(objectives), courses))


def _diagnostics(per_class: int, counts: list[int], objective: Tensor, courses: list[Course]) -> Diagnostics:
    curves = [list(filter(math.isfinite, torch.stack(c.objective).tolist() if c.objective else [])) for c in courses]
    told = [(float(count), own) for count, own in zip(counts, curves, strict=True) if own]
    curve: list[float] = []
    if told:
        # A search that ended early stays where it ended.
        length = max(len(own) for _, own in told)
        padded = torch.tensor([own + own[-1:] * (length - len(own)) for _, own in told])
        sizes = torch.tensor([size for size, _ in told])
        curve = thinned((sizes[:, None] * padded).sum(0).div(sizes.sum()).tolist())
    flat = [course.zero_gradient for course in courses if course.zero_gradient is not None]
    return Diagnostics(
        per_class=per_class,
        curve=tuple(curve),
        objective=mean_of_finite(objective),
        diverged=float((~objective.isfinite()).float().mean()),
        zero_gradient=float(torch.cat(flat).float().mean()) if flat else 0.0,
    )


def value_and_gradient(objective: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One objective a row, and the gradient of their sum: a row's own gradient, whatever the batch.

    Numbers that are not finite become zero: such a row stays where it is.
    """
    leaves = [x.detach().requires_grad_() for x in at]
    with torch.enable_grad():
        value = objective(*leaves)
        gradients = torch.autograd.grad(value.sum(), leaves)
    return value.detach(), tuple(torch.where(g.isfinite(), g, 0.0) for g in gradients)
