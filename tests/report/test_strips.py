"""Pictures of results, read from the store without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.core.spec import digest
from leakscope.report.strips import SHOWN, VICTIMS, originals
from leakscope.store import Store


@pytest.mark.parametrize("count", [1, SHOWN - 1, SHOWN, SHOWN + 3])
def test_as_many_as_there_are(tmp_path: Path, count: int) -> None:
    """A board of fewer victims than are shown was refused."""
    store, key = Store(tmp_path), digest("victims")
    truth = torch.arange(count * 64, dtype=torch.uint8).reshape(count, 1, 8, 8)
    store.put(VICTIMS, key, {}, {"truth": truth})
    shown = originals(store, key)
    assert shown is not None
    assert torch.equal(torch.from_numpy(shown), truth[:SHOWN])
