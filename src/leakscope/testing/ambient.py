"""What torch's ambient generators are about to draw."""

from __future__ import annotations

import torch
from torch import Tensor


def ambient_states(device: str) -> list[Tensor]:
    """The states of the CPU's default generator and of the device's own: equal before and after a method ran."""
    states = [torch.random.get_rng_state()]
    if torch.device(device).type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states
