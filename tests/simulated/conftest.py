"""Everything here runs on the simulated accelerator, on its second device: an implicit first one is noticed."""

from __future__ import annotations

import pytest

from leakscope.testing import device


@pytest.fixture(scope="session", autouse=True)
def simulated() -> None:
    """The device `sim`, compiled once; a test that asks for it skips where there is no compiler."""
    reason = device.unavailable()
    if reason is not None:
        pytest.skip(reason)
