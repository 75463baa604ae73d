"""Records what a network computes behind its cut, also outside of layers: for a batch, or for one picture."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

_T = TypeVar("_T")
#: Numbers per picture that are kept of what functions behind the cut compute, beside the outputs of layers.
_KEPT = 2**18
#: Numbers per picture of one layer's output.
LARGEST_SHOWN = 2**16
#: Operations whose output is their input in another shape or type.
_SAME = ("view", "reshape", "detach", "clone", "expand", "_to_copy", "alias", "unsqueeze", "squeeze", "permute")
#: Numbers kept of each tensor that is overheard, and of all together; where there are many tensors, fewer of each.
_HEARD, _HEARD_IN_ALL = 256, 2**16
#: Tensors that are overheard, from the first on and up to the last.
_FIRST, _LAST = 1024, 256


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


class Touched(TorchDispatchMode):
    """Which tensors operations read, by where they begin in memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._places |= {tensor.data_ptr() for tensor in _found(Tensor, (args, kwargs))}
        return func(*args, **(kwargs or {}))

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() in self._places


class Overheard(TorchDispatchMode):
    """Some numbers of every tensor that an operation gives, whatever its shape and type, on both sides.

    For one picture at a time: a server that works picture by picture, turns its maps around, or counts in whole
    numbers shows a batch nothing of the shape of a batch. At the server, inputs that no operation gave are kept as
    well: what was computed outside of PyTorch comes back as such an input. They are `foreign`.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.client, self.server, self.foreign = Heard(), Heard(), Heard(least=1)
        self.operations = 0
        self.numbers: list[float] = []  # that the server's operations take from Python
        self._side: Heard | None = self.client
        # By place in memory; storages are held, so that no place is used twice.
        self._known = {_place(tensor): tensor.untyped_storage() for tensor in weights}

    def at_server(self, sent: Tensor) -> None:
        """From here on the server works, on what was sent."""
        self._side = self.server
        self._known[_place(sent)] = sent.untyped_storage()
        self.server.keep(sent)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        side, self._side = self._side, None  # what follows is ours
        if side is not None:
            self.operations += 1
            taken = list(_found(Tensor, output))
            if side is self.server:
                new = [t for t in _found(Tensor, (args, kwargs)) if _place(t) not in self._known]
                self.numbers.extend(_found(float, (args, kwargs)))
                for tensor in new:
                    self.foreign.keep(tensor)
                    side.keep(tensor)
                self._known |= {_place(tensor): tensor.untyped_storage() for tensor in (*new, *taken)}
            for tensor in taken:
                side.keep(tensor)
        self._side = side
        return output


class Heard:
    """As many numbers per tensor as fit; the same positions for every picture of a network.

    Of many tensors, such as those of a solver's iterations, the first and the last are kept.
    """

    def __init__(self, least: int = 2) -> None:
        self._first: list[Tensor] = []
        self._last: deque[Tensor] = deque(maxlen=_LAST)
        self._each = _HEARD
        self._least = least

    @property
    def tensors(self) -> list[Tensor]:
        return [_thinned(tensor, self._each) for tensor in (*self._first, *map(self._numbers, self._last))]

    def keep(self, tensor: Tensor) -> None:
        if tensor.numel() < self._least:
            return
        if len(self._first) >= _FIRST:
            self._last.append(tensor.detach().clone() if tensor.numel() <= _HEARD else tensor)
            return
        self._first.append(self._numbers(tensor))
        if len(self._first) * self._each > _HEARD_IN_ALL and self._each > 8:
            self._each //= 2
            self._first = [_thinned(kept, self._each) for kept in self._first]

    def _numbers(self, tensor: Tensor) -> Tensor:
        flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return _thinned(flat.detach().reshape(-1), self._each).cpu().float()


def _place(tensor: Tensor) -> int:
    """Where its storage lies: views share it."""
    return tensor.untyped_storage().data_ptr()


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


def _found(kind: type[_T], values: Any) -> Iterator[_T]:
    """Values of this kind in what an operation takes or gives; of tensors, those that can be read."""
    if isinstance(values, kind):
        if not isinstance(values, Tensor) or (values.layout == torch.strided and not values.is_quantized):
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _found(kind, value)
    elif isinstance(values, dict):
        yield from _found(kind, list(values.values()))
