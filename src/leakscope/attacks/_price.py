"""What a computation costs, counted instead of timed: the same on every machine and under any load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from leakscope.sparse.batch import one_thread_each

# Of one core of a common processor, in seconds.
_FLOP = 4e-11
_ELEMENT = 1e-9
_CALL = 4e-6


class _Traffic(TorchDispatchMode):
    """Operations, numbers that they wrote, and multiplications and additions in products and convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.elements, self.flops = 0, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.calls += 1
        self.elements += sum(leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, Tensor))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=found))
        return found


def price(work: Callable[[], object]) -> float:
    """Roughly the seconds that `work` takes on one core, from its operations; it is run once."""
    with one_thread_each(), _Traffic() as traffic:  # which sees the calling thread only
        work()
    return float(_FLOP * traffic.flops + _ELEMENT * traffic.elements + _CALL * traffic.calls)
