"""Whether an encoder is residual: whether it adds one map to another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.core.model import SplitModel


class _Additions(TorchDispatchMode):
    """Notices sums of two maps, or of two rows of tokens, of one shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor):
            first, second = args[:2]
            both = isinstance(first, Tensor) and isinstance(second, Tensor)
            self.found |= both and first.ndim > 2 and first.shape == second.shape
        return func(*args, **(kwargs or {}))


def has_shortcuts(split: SplitModel, image_shape: tuple[int, int, int]) -> bool:
    device = next((p.device for p in split.parameters()), torch.device("cpu"))
    additions = _Additions()
    with torch.no_grad(), additions:
        split.encode(torch.zeros(1, *image_shape, device=device))
    return additions.found
