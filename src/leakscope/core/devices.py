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

import torch
from torch import Tensor


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
