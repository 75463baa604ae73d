"""One rule for float64: where it is needed it is used, on the device if that has it, else on the CPU.

Some work needs more digits than float32 has: Gram matrices and their decompositions, sums over all pixels,
the log-determinants of a flow. Apple's GPUs have no float64. Such work is written as

    wide = widened(x)                    # float64: on x's device, or on the CPU when the device has none
    solution = torch.linalg.solve(wide.T @ wide, wide.T @ widened(y))
    answer = solution.to(x)              # back to x's device and precision

so that scores do not depend on the device, and no method asks which device it runs on. `widened` is
differentiable, and costs nothing but the conversion on devices with float64. What was learnt in float64 and
kept comes back by `brought(tensor, device)`, to where `widened` puts what it meets.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from leakscope.core.memory import available


def has_float64(device: torch.device) -> bool:
    """Whether a device can hold float64 at all; asked of the device itself."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def brought(x: Tensor, device: torch.device) -> Tensor:
    """A kept tensor on a device; in float64 it stays on the CPU when the device has none."""
    return x.cpu() if x.dtype == torch.float64 and device.type != "cpu" and not has_float64(device) else x.to(device)


def widened(x: Tensor) -> Tensor:
    """The same numbers in float64: on x's own device where that has float64, else on the CPU."""
    if x.device.type != "cpu" and not has_float64(x.device):
        x = x.cpu()
    return x.double()


def free_on(device: torch.device) -> int:
    """Bytes that can still be taken on a device: what it reports itself, else what this process can take."""
    if device.type == "cpu":
        return available()
    module = getattr(torch, device.type, None)
    with suppress(RuntimeError, AttributeError, TypeError, NotImplementedError):
        free, _ = module.mem_get_info(device)  # type: ignore[union-attr]
        # What torch holds without using it is free for this process.
        held = module.memory_reserved(device) - module.memory_allocated(device)  # type: ignore[union-attr]
        return int(free + held)
    with suppress(RuntimeError, AttributeError, TypeError):
        most, used = module.recommended_max_memory(), module.driver_allocated_memory()  # type: ignore[union-attr]
        return max(0, int(most - used))
    return available()


#: A loop that may end early makes an accelerator wait about so often, however many steps it may take.
_LOOKS = 3


def look_every(device: torch.device, steps: int, looks: int = _LOOKS) -> int:
    """After how many steps a loop of at most `steps` looks whether it may end: each one on the CPU, where it is free.

    On an accelerator every look waits until all work handed over so far is done. Loops are therefore written so that
    further steps change nothing once they may end, and look `looks` times in all.
    """
    return 1 if device.type == "cpu" else max(1, -(-steps // looks))
