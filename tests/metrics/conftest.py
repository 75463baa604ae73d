"""A data root with stand-in weights of the right shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from leakscope.nn import alexnet


@pytest.fixture(scope="session")
def stand_in_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root whose LPIPS file has the right names and shapes, and random numbers."""
    rng = torch.Generator().manual_seed(0)
    shapes = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}
    tensors = {}
    for index, (after, before, kernel) in shapes.items():
        scale = (2 / (before * kernel**2)) ** 0.5
        tensors[f"features.{index}.weight"] = torch.randn(after, before, kernel, kernel, generator=rng) * scale
        tensors[f"features.{index}.bias"] = 0.1 * torch.randn(after, generator=rng)
    for index, width in enumerate((64, 192, 384, 256, 256)):
        tensors[f"lin{index}"] = torch.rand(width, generator=rng)
    root = tmp_path_factory.mktemp("root")
    (root / "weights").mkdir()
    save_file(tensors, root / "weights" / alexnet.FILE)
    return root
