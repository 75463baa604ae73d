"""Shared fixtures. Tests run on one thread: many small operations wait on each other otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
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


#: Where audits must not be fooled: every picture counts that a release is asked about.
THOROUGH = (ROOT / "tests" / "zoo", ROOT / "tests" / "experiments" / "test_listening.py")


@pytest.fixture(scope="module", autouse=True)
def _quick_probes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every new target is probed with hundreds of pictures, one at a time: seconds that tell most tests nothing."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(map(request.path.is_relative_to, THOROUGH)):
            few = {"probes._READ": 64, "probes._REBUILT": 16, "listening._KNOWN": 16, "listening._REBUILT": 4}
            for name, count in few.items():
                patch.setattr(f"leakscope.experiments.{name}", count)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lines are not counted (`--cov`) in whole audits by the dozen: others run the same lines, and it costs a third."""
    for item in items:
        if any(map(item.path.is_relative_to, THOROUGH)):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets beside the repository, or the folder LEAKSCOPE_DATA names."""
    folder = Path(os.environ.get("LEAKSCOPE_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "mnist.npz").exists():
        pytest.skip(f"no real data sets in {folder}; set LEAKSCOPE_DATA to run this test")
    return folder


@pytest.fixture
def heard_interrupts() -> Iterator[None]:
    """Ctrl-C as in a terminal: a shell starts what it runs in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
