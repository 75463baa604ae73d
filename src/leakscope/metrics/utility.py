"""What the target is still good for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.devices import widened


def _require_scores(scores: Tensor, labels: Tensor) -> None:
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"scores {tuple(scores.shape)} must be N×classes and labels {tuple(labels.shape)} N, with N at least 1"
        )
    if not scores.isfinite().all():
        raise ValueError("scores are NaN or infinite; the target did not train")
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(f"labels must lie in 0 … {scores.shape[1] - 1}, one class for each score")


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """The share of pictures whose highest score is that of their label (top 1)."""
    _require_scores(scores, labels)
    return float(widened(scores.argmax(1) == labels).mean())


def calibration(scores: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error: Σ_b (n_b/N)·|accuracy_b − confidence_b| (Guo et al., ICML 2017).

    `scores` are logits; the confidence is the highest softmax probability, in `bins` equal bins
    ((b−1)/bins, b/bins].
    """
    _require_scores(scores, labels)
    if bins < 1:
        raise ValueError(f"bins must be 1 or more, not {bins}")
    confidence, predicted = scores.detach().cpu().double().softmax(1).max(1)
    correct = (predicted == labels.cpu()).double()
    inner_edges = torch.arange(1, bins, dtype=torch.float64) / bins
    member = F.one_hot(torch.bucketize(confidence, inner_edges), bins).double()  # N×bins
    # n_b·|accuracy_b − confidence_b| is the absolute sum of correct − confidence over the bin.
    return float(((correct - confidence) @ member).abs().sum() / len(labels))
