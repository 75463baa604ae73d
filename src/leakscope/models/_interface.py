"""A model that only answers: pictures go in, scores or labels come out, and nobody sees a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import UsageError
from leakscope.models.architecture import Brought

Answers = Literal["scores", "labels"]
#: What a caller hands over: N×C×H×W pixels in [0, 1] to N×K scores, or to N labels.
Query = Callable[[Tensor], Any]


class _Asked(torch.autograd.Function):
    """The answer as a step of the graph, so that a cut is found behind it; it has no gradient to give."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        return ask(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        raise UsageError("a model behind an interface has no gradients; name attacks that need queries only")


class Answer(nn.Module):
    """The layer whose output is what the interface sends back."""

    def __init__(self, ask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.ask = ask

    def __deepcopy__(self, memo: dict[int, Any]) -> Answer:
        return Answer(self.ask)  # a connection, or a function with whatever it holds, is not ours to copy

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Asked.apply(x, self.ask)  # type: ignore[no-untyped-call]
        return found


class Interface(nn.Module):
    """`answer` is all that leaves the service; nothing comes behind it."""

    def __init__(self, ask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = Answer(ask)
        self.read = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        read: Tensor = self.read(self.answer(x))
        return read


class Behind(Brought):
    """An architecture without weights: what it is cut at, and all an attacker gets, is its answer."""

    answer_layer: ClassVar[str] = "answer"

    @property
    def default_cuts(self) -> tuple[str, ...]:
        return (self.answer_layer,)

    @property
    def gives(self) -> Answers:
        """What it answers with."""
        raise NotImplementedError

    @property
    def grants(self) -> frozenset[str]:
        found = {"features", "query", "labels"}
        return frozenset(found | {"scores"} if self.gives == "scores" else found)


def rows(answer: Any, count: int, classes: int, name: str) -> Tensor:
    """An answer as N×classes numbers: scores as they are, labels as ones and zeros."""
    found = torch.as_tensor(answer).detach().cpu()
    classes = classes or (int(found.max()) + 1 if found.ndim == 1 else 0)
    if found.ndim == 1 and len(found) == count and not found.is_floating_point() and found.dtype != torch.bool:
        if count and not 0 <= int(found.min()) <= int(found.max()) < classes:
            raise UsageError(f"{name} answered with label {int(found.max())}; the data have {classes} classes, 0 first")
        return F.one_hot(found.long(), classes).float()
    if found.ndim != 2 or len(found) != count or not (found.is_floating_point() or found.dtype == torch.int64):
        raise UsageError(
            f"{name} must answer {count} pictures with {count} rows of scores or {count} whole labels, "
            f"not {found.dtype} of shape {tuple(found.shape)}"
        )
    if not torch.isfinite(found.float()).all():
        raise UsageError(f"{name} answered with NaN or infinite scores; mend the service")
    return found.float()


def top(scores: Tensor) -> Tensor:
    """Scores as ones and zeros: the label alone."""
    return F.one_hot(scores.argmax(1), scores.shape[1]).float()
