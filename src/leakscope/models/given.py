"""A network the caller already holds."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from leakscope.core.spec import code_digest, digest
from leakscope.models.architecture import Brought, normalize_field
from leakscope.models.weights import state_digest


@dataclass(frozen=True)
class Given(Brought):
    """An `nn.Module` handed over in Python; structure, code and weights are its identity. It has no name to ask for."""

    kind_name: ClassVar[str] = "given"
    revision: ClassVar[int] = 1

    layers: str
    weights: str = field(metadata={"shown": False})
    structure: str = field(default="", metadata={"shown": False})
    normalize: str = normalize_field()
    module: nn.Module | None = field(
        default=None, repr=False, compare=False, metadata={"identity": False, "shown": False}
    )

    @classmethod
    def of(cls, module: nn.Module) -> Given:
        module = getattr(module, "_orig_mod", module)  # what torch.compile wrapped: hooks do not reach into its graph
        return cls(type(module).__qualname__, state_digest(module), structure_digest(module), module=module)

    def build(self, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        if self.module is None:
            raise ValueError("a given network exists only in the process that holds it; pass the module itself")
        return copy.deepcopy(self.module)


#: Attributes of a module that are what it does, where it has no parameters to show for it.
_PLAIN = (bool, int, float, str, tuple, list, type(None))


def structure_digest(module: nn.Module) -> str:
    """Identity of what a network computes: its layers in order, their plain settings, and the code of foreign ones."""
    parts = []
    for name, layer in module.named_modules():
        kind = type(layer)
        settings = {k: repr(v) for k, v in vars(layer).items() if isinstance(v, _PLAIN) and k != "training"}
        own = "" if kind.__module__.startswith("torch.") else code_digest(kind)
        replaced = getattr(vars(layer).get("forward"), "__code__", None)  # a forward put on the instance
        code = "" if replaced is None else f"{replaced.co_code.hex()} {replaced.co_names} {replaced.co_filename}"
        parts.append([name, kind.__module__, kind.__qualname__, own, code, sorted(settings.items())])
    return digest(parts)
