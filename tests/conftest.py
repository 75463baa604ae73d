"""Shared fixtures. Tests run on one thread: many small operations wait on each other otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

ROOT = Path(__file__).parents[1]

#: PyTorch counts its accelerators when it first differentiates: the simulated one must be there by then, so its tests
#: run in a process of their own (`make test` does it; by hand: LEAKSCOPE_SIMULATED=1 pytest tests/simulated).
collect_ignore = [] if os.environ.get("LEAKSCOPE_SIMULATED") else ["simulated"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets beside the repository, or the folder LEAKSCOPE_DATA names."""
    folder = Path(os.environ.get("LEAKSCOPE_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "mnist.npz").exists():
        pytest.skip(f"no real data sets in {folder}; set LEAKSCOPE_DATA to run this test")
    return folder
