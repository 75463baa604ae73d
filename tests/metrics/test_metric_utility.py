from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score
from torch import Tensor

from leakscope.metrics.utility import accuracy, calibration


def answers(seed: int, n: int, classes: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, classes, generator=rng), torch.randint(classes, (n,), generator=rng)


@settings(max_examples=40)
@given(seed=st.integers(0, 999), n=st.integers(1, 60), classes=st.integers(1, 6), bins=st.integers(1, 20))
def test_against_scikit_and_the_definition(seed: int, n: int, classes: int, bins: int) -> None:
    scores, labels = answers(seed, n, classes)
    predicted = scores.argmax(1).numpy()
    assert accuracy(scores, labels) == pytest.approx(accuracy_score(labels.numpy(), predicted))
    probabilities = scores.double().softmax(1).numpy()
    confidence, correct = probabilities.max(1), predicted == labels.numpy()
    error = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert calibration(scores, labels, bins) == pytest.approx(error, abs=1e-12)


def test_a_calibrated_and_an_overconfident_target() -> None:
    # Three of four answers are right, said with probability 3/4.
    logits = torch.tensor([3.0, 1.0]).log().repeat(400, 1)
    labels = (torch.arange(400) % 4 == 0).long()
    assert calibration(logits, labels) == pytest.approx(0, abs=1e-6)
    assert calibration(100 * logits, labels) == pytest.approx(0.25, abs=1e-6)
    assert accuracy(logits, labels) == 0.75


def test_wrong_arguments_are_refused() -> None:
    scores, labels = answers(0, 5, 3)
    with pytest.raises(ValueError, match="N×classes"):
        accuracy(scores, labels[:4])
    with pytest.raises(ValueError, match="did not train"):
        calibration(scores / 0, labels)
    with pytest.raises(ValueError, match="labels must lie in 0 … 2"):
        accuracy(scores, labels + 3)
    with pytest.raises(ValueError, match="bins must be 1 or more"):
        calibration(scores, labels, bins=0)
    assert np.isfinite(calibration(scores, labels))
