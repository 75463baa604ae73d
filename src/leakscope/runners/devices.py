"""The device that a name means, in whatever process it is needed, and what a scheduler is asked for to get one."""

from __future__ import annotations

import torch

from leakscope.core.errors import UsageError

#: The simulated accelerator, for rehearsals without a GPU: `leakscope.testing.device`.
SIMULATED = "sim"
#: What Ray calls devices of a kind; it counts no others.
RAY_RESOURCES = {"cuda": "GPU", "xpu": "GPU", "hpu": "HPU", "npu": "NPU", "xla": "TPU"}


def chosen(name: str) -> torch.device:
    """The device of that name, ready for use in this process.

    `auto` is the accelerator if there is one, and never the simulated one. `sim`, `sim:0` and `sim:1` are known to
    torch once this was asked for them: they are compiled when first used on a machine.
    """
    if name == "auto":
        return torch.device(_accelerator() or "cpu")
    try:
        if kind_of(name) == SIMULATED:
            from leakscope.testing import device as simulated

            simulated.install()
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        if device.type == SIMULATED and (device.index or 0) >= torch.get_device_module(device).device_count():
            raise RuntimeError("there are sim:0 and sim:1")
        torch.empty(0, device=device)
    except Exception as error:  # every kind of device has errors of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"device {name!r} cannot be used here ({reason}); take --device cpu") from None
    return device


def shared_out(name: str) -> list[str]:
    """The devices that workers share out among themselves: every accelerator of the kind, or the CPU."""
    device = chosen(name)
    if device.type == "cpu" or device.index is not None:
        return [str(device)]
    return [f"{device.type}:{number}" for number in range(torch.get_device_module(device).device_count())]


def kind_of(name: str) -> str:
    """`cuda` of `cuda:1`. This machine need not have one: jobs may run elsewhere."""
    return name.partition(":")[0]


def on_a_node(name: str) -> str:
    """What a job calls its device where a scheduler hands out accelerators: it sees one, the first of its kind.

    The machine that submits need not have what nodes have, so `auto` is the CPU. A simulated device is not handed
    out by anybody and keeps its number.
    """
    kind = kind_of(name)
    return "cpu" if kind == "auto" else name if kind == SIMULATED else kind


def is_scheduled(name: str) -> bool:
    """Whether a scheduler must be asked for an accelerator."""
    return on_a_node(name) != "cpu" and kind_of(name) != SIMULATED


def _accelerator() -> str | None:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != SIMULATED:
        return None if found is None else found.type
    # Torch names one accelerator, and a simulated one hides the others.
    return next((kind for kind in ("cuda", "mps", "xpu") if torch.get_device_module(kind).is_available()), None)
