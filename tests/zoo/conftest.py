from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from leakscope.core.data import DATASETS, Splits
from leakscope.data.splits import SplitPlan
from leakscope.testing import zoo

#: Public pictures are few: a fake must not pass because there was much to learn from.
SPLITS: dict[str, Any] = {"private": 800, "heldout": 390, "public": 600}


@pytest.fixture(scope="session")
def parts() -> Splits:
    return SplitPlan(**SPLITS).draw(DATASETS.build("digits").load(None), 0)


@pytest.fixture(scope="session")
def bases(parts: Splits) -> dict[int, nn.Sequential]:
    """Networks by seed, trained when they are first asked for."""
    return {}


@pytest.fixture(scope="session", autouse=True)
def _enrolled() -> Iterator[None]:
    with zoo.enrolled():
        yield
