"""A Python function that answers for a model."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.errors import UsageError
from leakscope.models._interface import Answers, Behind, Interface, Query, rows


@dataclass(frozen=True)
class Asked(Behind):
    """A function handed over in Python: pictures in, scores or labels out. It has no name to ask for.

    Nobody can see whether a function still answers as it did: unless it says so itself with an attribute `version`,
    every call of `leakscope.audit` takes it for a new one, and reuses nothing.
    """

    kind_name: ClassVar[str] = "asked"
    revision: ClassVar[int] = 1

    name: str
    answers: Answers
    version: str = field(metadata={"shown": False})
    query: Query | None = field(default=None, repr=False, compare=False, metadata={"identity": False, "shown": False})

    @classmethod
    def of(cls, query: Query, image_shape: tuple[int, int, int]) -> Asked:
        name = getattr(query, "__qualname__", type(query).__qualname__)
        version = getattr(query, "version", None)
        answer = torch.as_tensor(_asked(query, torch.rand(2, *image_shape), name))
        kind: Answers = "labels" if answer.ndim == 1 and not answer.is_floating_point() else "scores"
        return cls(name, kind, uuid.uuid4().hex if version is None else str(version), query)

    @property
    def gives(self) -> Answers:
        return self.answers

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        query = self.query
        if query is None:
            raise ValueError("a function exists only in the process that holds it; pass the function itself")

        def ask(x: Tensor) -> Tensor:
            return rows(_asked(query, x, self.name), len(x), classes, self.name).to(x.device)

        return Interface(ask)


def _asked(query: Query, x: Tensor, name: str) -> object:
    try:
        with torch.no_grad():
            return query(x.detach())
    except UsageError:
        raise
    except Exception as error:  # whatever a user's function raises
        reason = " ".join(str(error).split()) or type(error).__name__
        size = "×".join(map(str, x.shape))
        raise UsageError(f"{name} failed on {size} pictures ({reason}); mend the function") from error
