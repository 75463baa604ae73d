"""Records what a network computes behind its cut, also outside of layers: for a batch, or for one picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

#: Numbers per picture that are kept of what functions behind the cut compute, beside the outputs of layers.
_KEPT = 2**18
#: Numbers per picture of one layer's output.
LARGEST_SHOWN = 2**16
#: Operations whose output is their input in another shape or type.
_SAME = ("view", "reshape", "detach", "clone", "expand", "_to_copy", "alias", "unsqueeze", "squeeze", "permute")
#: Numbers kept of each tensor that is overheard, and of all together; where there are many tensors, fewer of each.
_HEARD, _HEARD_IN_ALL = 256, 2**16


class Watched(TorchDispatchMode):
    """Records the output of every operation for a batch of `count` pictures, also outside of layers."""

    def __init__(self, count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = count
        self.on = False
        self.number = 0
        self.size = 0
        self.kept: dict[str, Tensor] = {}
        self.recent: dict[int, str] = {}  # places in memory of the last outputs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        first = output[0] if isinstance(output, tuple | list) and output else output
        name = str(func).split(".")[1] if "." in str(func) else str(func)
        if self.on and isinstance(first, Tensor) and first.ndim > 1 and len(first) == self.count:
            self.number += 1
            numbers = first[0].numel() if len(first) else 0
            fits = first.is_floating_point() and numbers > 1 and self.size + numbers <= _KEPT
            if fits and not name.startswith(_SAME):
                key = f"{name} {self.number}"
                self.kept[key] = first.clone()
                self.size += numbers
                self.recent = {**dict(list(self.recent.items())[-3:]), first.data_ptr(): key}
        return output

    def shown(self, output: Tensor) -> None:
        """This output of a layer is recorded already, so the operation inside the layer is not recorded again."""
        key = self.recent.pop(output.data_ptr(), None)
        if key in self.kept:
            self.size -= self.kept.pop(key)[0].numel()


class Overheard(TorchDispatchMode):
    """Some numbers of every tensor that an operation takes or gives, whatever its shape and type.

    For one picture at a time: a server that works picture by picture, turns its maps around, or counts in whole
    numbers shows a batch nothing of the shape of a batch. Inputs are kept as well as outputs, since what was
    computed outside of PyTorch comes back as an input.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on = False
        self._kept: list[Tensor] = []
        self._each = _HEARD
        self._weights = {tensor.data_ptr() for tensor in weights}
        self._last: tuple[int, ...] = ()  # places in memory of what the last operation took and gave

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.on:
            self.on = False  # what follows is ours
            given = [t for t in _tensors(args) if t.data_ptr() not in self._weights and t.data_ptr() not in self._last]
            taken = list(_tensors(output))
            for tensor in (*given, *taken):
                self._keep(tensor)
            self._last = tuple(t.data_ptr() for t in taken)
            self.on = True
        return output

    @property
    def heard(self) -> list[Tensor]:
        """As many numbers per tensor as fit; the same positions for every picture of a network."""
        return [_thinned(tensor, self._each) for tensor in self._kept]

    def _keep(self, tensor: Tensor) -> None:
        if tensor.numel() < 2:
            return
        flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        self._kept.append(_thinned(flat.detach().reshape(-1), self._each).cpu().float())
        if len(self._kept) * self._each > _HEARD_IN_ALL and self._each > 8:
            self._each //= 2
            self._kept = [_thinned(kept, self._each) for kept in self._kept]


def thinned(features: Tensor, most: int) -> Tensor:
    """At most about so many numbers per picture: every k-th channel of a map or of tokens, whole at every place.

    Where channels are fewer than that asks for, places are averaged over squares as well.
    """
    numbers = features[0].numel() if len(features) else 0
    if numbers <= most or features.ndim < 2:
        return features
    axis = 1 if features.ndim in (2, 4) else features.ndim - 1
    step = min(-(-numbers // most), features.shape[axis])
    features = features.index_select(axis, torch.arange(0, features.shape[axis], step, device=features.device))
    left = features[0].numel() / most
    return F.avg_pool2d(features, math.ceil(left**0.5), ceil_mode=True) if left > 1 and features.ndim == 4 else features


def _thinned(flat: Tensor, most: int) -> Tensor:
    """At most so many numbers, evenly spaced."""
    return flat[:: max(1, -(-len(flat) // most))].clone()


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        if values.layout == torch.strided and not values.is_quantized:
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
