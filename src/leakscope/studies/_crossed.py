"""Intervals for pictures crossed with seeds: the same victims are attacked on every seed's network."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.seeds import generator

RESAMPLES = 2_000
LEVEL = 0.95


def crossed_interval(values: Tensor) -> dict[str, float | int]:
    """Mean of a seeds × pictures table, with its interval when seeds and pictures are both drawn anew.

    Pigeonhole bootstrap (Owen, "The pigeonhole bootstrap", 2007): rows and columns are resampled
    independently, which never understates the variance of the mean by more than resampling one of them.
    """
    table = values.double()
    seeds, pictures = table.shape
    rng = generator(0, "crossed bootstrap")
    rows = torch.randint(seeds, (RESAMPLES, seeds), generator=rng)
    columns = torch.randint(pictures, (RESAMPLES, pictures), generator=rng)
    # The mean over a resampled rectangle is (row counts) · table · (column counts) over its size.
    row_share = torch.zeros(RESAMPLES, seeds, dtype=table.dtype).scatter_add_(
        1, rows, torch.full(rows.shape, 1 / seeds, dtype=table.dtype)
    )
    column_share = torch.zeros(RESAMPLES, pictures, dtype=table.dtype).scatter_add_(
        1, columns, torch.full(columns.shape, 1 / pictures, dtype=table.dtype)
    )
    means = (row_share @ table * column_share).sum(1)
    tail = (1 - LEVEL) / 2
    low, high = means.quantile(torch.tensor((tail, 1 - tail), dtype=table.dtype)).tolist()
    spread = float(table.std()) if table.numel() > 1 else 0.0
    return {"mean": float(table.mean()), "std": spread, "low": low, "high": high, "images": pictures, "seeds": seeds}
