"""The samples of a batch by class, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Which group each of N samples is in, for G groups."""

    index: Tensor  # N, in 0 … G−1
    count: Tensor  # G, as floats

    def sum(self, values: Tensor) -> Tensor:
        """Σ over each group: N×… to G×…"""
        empty = values.new_zeros(len(self.count), *values.shape[1:])
        return empty.index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of each group, 0 where it is empty."""
        count = self.count.to(values.dtype).clamp_min(1).view(-1, *(1,) * (values.ndim - 1))
        return self.sum(values) / count

    def softmax(self, logits: Tensor) -> Tensor:
        """Weights that sum to 1 over each group: N to N."""
        highest = logits.new_full((len(self.count),), -torch.inf)
        highest = highest.scatter_reduce(0, self.index, logits.detach(), "amax")
        weights = (logits - highest[self.index]).exp()
        return weights / self.sum(weights)[self.index]

    def ranks(self) -> Tensor:
        """The place of each sample within its group, in the order of the batch: N."""
        order = self.index.argsort(stable=True)
        starts = self.count.cumsum(0) - self.count
        place = torch.arange(len(order), device=order.device) - starts.long()[self.index[order]]
        return torch.empty_like(order).scatter_(0, order, place)


def grouped(index: Tensor, groups: int) -> Groups:
    """Groups by number; some may be empty."""
    return Groups(index, torch.bincount(index, minlength=groups).float())


def by_class(y: Tensor) -> Groups:
    """The classes that are present, and no others."""
    _, index, count = y.unique(return_inverse=True, return_counts=True)
    return Groups(index, count.float())
