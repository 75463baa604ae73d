"""A network the caller already holds."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from leakscope.models.architecture import Architecture
from leakscope.models.weights import state_digest


@dataclass(frozen=True)
class Given(Architecture):
    """An `nn.Module` handed over in Python; its class and weights are its identity. It has no name to ask for."""

    kind_name: ClassVar[str] = "given"
    revision: ClassVar[int] = 1

    layers: str
    weights: str = field(metadata={"shown": False})
    module: nn.Module | None = field(
        default=None, repr=False, compare=False, metadata={"identity": False, "shown": False}
    )

    @classmethod
    def of(cls, module: nn.Module) -> Given:
        return cls(type(module).__qualname__, state_digest(module), module)

    @property
    def trained(self) -> bool:
        return True

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        if self.module is None:
            raise ValueError("a given network exists only in the process that holds it; pass the module itself")
        return copy.deepcopy(self.module)
