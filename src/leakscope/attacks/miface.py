"""Plain gradient ascent on pixels: the oldest class attack, and the weakest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakscope.attacks._class_search import Course, classes_of, rebuild, value_and_gradient
from leakscope.attacks._white_box import WhiteBox
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.threat import Access, View


@ATTACKS.register("miface")
@dataclass(frozen=True)
class Miface(Attack):
    """Climbs the target's probability of the class, pixel by pixel, with no idea of what pictures look like.

    x ← clip(x − η∇c(x)), c(x) = 1 − softmax_y(T(x)), until c ≤ 1 − `confidence`, or c is no lower than the
    highest of the last `window` costs; the picture is the iterate of lowest cost. One a class: nothing is random.

    Fredrikson, Jha & Ristenpart, "Model inversion attacks that exploit confidence information", 2015, with
    the settings of the Adversarial Robustness Toolbox.

    Differs from the paper: no denoising of the iterates.
    """

    steps: int = 10_000
    learning_rate: float = 0.1
    confidence: float = 0.99
    window: int = 100
    start: Literal["black", "grey", "mean"] = "black"  # mean: of the public pictures

    needs: ClassVar[frozenset[Access]] = frozenset({Access.ENCODER, Access.HEAD})
    goal: ClassVar[str] = "identities"
    adapts: ClassVar[bool] = True
    white_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 0 or self.window < 1 or self.learning_rate <= 0:
            raise ValueError("steps must be 0 or more, window 1 or more and learning_rate positive")
        if not 0 < self.confidence <= 1:
            raise ValueError("confidence is a probability at which to stop: above 0, at most 1")

    def reconstruct(self, view: View, prepared: Prepared, seen: Observed, rng: torch.Generator) -> Reconstruction:
        del prepared
        target = WhiteBox(view, rng)
        return rebuild(
            self.kind_name,
            classes_of(seen, view, self.kind_name),
            per_class=1,
            rows=1,
            steps=self.steps,
            search=lambda chunk, course: self._climb(target, STARTS[self.start](view), chunk, course),
        )

    def _climb(self, target: WhiteBox, start: Tensor, classes: Tensor, course: Course) -> tuple[Tensor, Tensor]:
        x = start.expand(len(classes), -1, -1, -1).clone()
        best, lowest = x.clone(), torch.full((len(x),), torch.inf, device=x.device)
        recent = torch.full((len(x), self.window), torch.inf, device=x.device)
        rows = torch.arange(len(x), device=x.device)
        latest = torch.ones(len(x), device=x.device)

        def cost(x: Tensor, rows: Tensor) -> Tensor:
            return 1 - target.scores(x).softmax(1).gather(1, classes[rows, None]).squeeze(1)

        for step in range(self.steps + 1):
            value, (gradient,) = value_and_gradient(lambda x, rows=rows: cost(x, rows), x[rows])
            latest[rows] = value
            better = value < lowest[rows]
            best[rows] = torch.where(better[:, None, None, None], x[rows], best[rows])
            lowest[rows] = torch.where(better, value, lowest[rows])
            if step < self.steps:
                course.step(latest, gradient)
            going = (value > 1 - self.confidence) & (value < recent[rows].amax(1))
            recent[rows, step % self.window] = value
            going = going.nonzero().squeeze(1)  # the one place of a step that waits for its numbers
            rows, gradient = rows[going], gradient[going]
            if step == self.steps or not len(rows):
                break
            x[rows] = (x[rows] - self.learning_rate * gradient).clamp(0, 1)
        return best, lowest


STARTS: dict[str, Callable[[View], Tensor]] = {
    "black": lambda view: torch.zeros(1, *view.image_shape, device=view.device),
    "grey": lambda view: torch.full((1, *view.image_shape), 0.5, device=view.device),
    "mean": lambda view: view.public.images.mean(0, keepdim=True).to(view.device),
}
