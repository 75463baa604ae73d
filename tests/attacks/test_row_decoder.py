"""The decoder for maps whose rows were mixed: the published size, and that it is taken where it fits."""

from __future__ import annotations

import pytest
import torch

from leakscope.attacks._decoders import FRONTS, RowDecoder
from leakscope.core.errors import UsageError


def test_large_is_the_published_decoder() -> None:
    decoder = FRONTS["rows"]((28, 28, 500), (1, 28, 28), "large")
    rows = 500 * 800 + 800 + 800 * 28 + 28
    convolutions = 28 * 16 * 25 + 16 + 16 * 16 * 25 + 16 + 16 * 25 + 1
    norms = 2 * (16 + 16)
    assert sum(p.numel() for p in decoder.parameters()) == rows + convolutions + norms
    assert decoder(torch.randn(2, 28, 28, 500)).shape == (2, 1, 28, 28)


def test_auto_takes_it_for_mixed_rows_only() -> None:
    assert isinstance(FRONTS["auto"]((6, 28, 16), (1, 28, 28), "small"), RowDecoder)
    assert not isinstance(FRONTS["auto"]((6, 28, 28), (1, 28, 28), "small"), RowDecoder)
    assert not isinstance(FRONTS["auto"]((6, 14, 14), (1, 28, 28), "small"), RowDecoder)


def test_other_shapes_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="front=auto"):
        FRONTS["rows"]((6, 14, 14), (1, 28, 28), "small")
