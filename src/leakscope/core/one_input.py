"""Networks of several inputs as networks of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from leakscope.core.errors import UsageError


class OneInput(nn.Module):
    """A network of several inputs as one of pictures: all others are held fixed.

    `before` are the inputs in front of the picture and `others` those given by name; a tensor has one row, which is
    repeated for every picture. Layers are called `network.…`.
    """

    def __init__(self, network: nn.Module, *before: Any, **others: Any) -> None:
        super().__init__()
        self.network = network
        self._before = tuple(self._kept(f"before{number}", value) for number, value in enumerate(before))
        self._others = {name: self._kept(f"other_{name}", value) for name, value in others.items()}

    def _kept(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.ndim == 0 or len(value) != 1:
            raise UsageError(f"a fixed input has one row, to be repeated for every picture; not {tuple(value.shape)}")
        self.register_buffer(name, value)
        return _Buffer(name)

    def forward(self, x: Tensor) -> Any:
        def repeated(value: Any) -> Any:
            if not isinstance(value, _Buffer):
                return value
            row = self.get_buffer(value.name)
            return row.expand(len(x), *row.shape[1:])

        before = [repeated(value) for value in self._before]
        return self.network(*before, x, **{name: repeated(value) for name, value in self._others.items()})


@dataclass(frozen=True)
class _Buffer:
    """A tensor that moves with its network, by name."""

    name: str
