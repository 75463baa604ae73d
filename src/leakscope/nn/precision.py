"""Double precision, where the device has it."""

from __future__ import annotations

from torch import Tensor


def wide(images: Tensor) -> Tensor:
    """In double precision where the device has it: sums over pixels are then exact to the last digit shown."""
    return images if images.device.type == "mps" else images.double()
