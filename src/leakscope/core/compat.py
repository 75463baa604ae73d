"""PyPI's torchvision is built for CUDA; beside a CPU torch it looks for two operators that are not there."""

from __future__ import annotations

import importlib
import sys

import torch

_declared: list[torch.library.Library] = []  # a library unregisters when it is collected


def ensure_torchvision() -> None:
    """Make `import torchvision` (and timm, which imports it) work; call before either.

    torchvision registers fake kernels for `nms` and `qnms` on import, which fails when its compiled
    extension did not load. Declaring the operators without a kernel is enough, because nothing here calls them.
    """
    if "torchvision" in sys.modules:
        return
    try:
        importlib.import_module("torchvision")
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    fragment = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        fragment.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(fragment)
    importlib.import_module("torchvision")
