"""Every penalty at the cut in the real training loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakscope.experiments.training import Training, train
from leakscope.testing.synthetic import CPU, image_set

from .in_training import check_interrupted, defended, trained, weights

WEIGHTED = ["mixcon", "unicon", "nopeek", "cem", "cem-logdet", "cem-gated", "cem-slot", "cem-fused", "adversarial"]
ACTIVE = [
    "mixcon",
    "unicon",
    "nopeek",
    "cem:two_stage=true",
    "cem-logdet",
    "cem-gated:warmup=1,form=published",
    "cem-gated:warmup=1",
    "cem-slot:warmup=1,form=published,settings={slots: 2, silent_calls: 0}",
    "cem-slot:warmup=1,settings={slots: 2}",
    "cem-fused:warmup=1,settings={slots: 2}",
    "adversarial:threshold=0,width=8,blocks=1",
    "tied-sparse",
    "patrol:share=0.5,above=4,at=0.5",
    "tied-sparse+gaussian:0.025+cem-logdet+nopeek:0.1",
]


@pytest.fixture(scope="module")
def undefended() -> torch.Tensor:
    return weights(trained("none")[0])


@pytest.mark.parametrize("name", WEIGHTED)
def test_weight_zero_trains_the_undefended_network_bit_for_bit(name: str, undefended: torch.Tensor) -> None:
    split, history, _ = trained(f"{name}:0")
    assert torch.equal(weights(split), undefended)
    assert history.penalty == [0.0, 0.0]


@pytest.mark.parametrize("spec", ACTIVE)
def test_mixed_precision_trains(spec: str) -> None:
    """Penalties are computed in single precision: half of it has no digits for small variances."""
    data, penalties = image_set(24, "private"), []
    for mixed in (False, True):
        training = Training(epochs=2, batch=24, optimizer="sgd", learning_rate=1e-4, mixed_precision=mixed)
        split, history, _ = train(defended(spec), data, training, seed=0, device=CPU)
        assert weights(split).isfinite().all()
        penalties.append(history.penalty)
    assert penalties[1] == pytest.approx(penalties[0], rel=0.05, abs=0.01)


@pytest.mark.parametrize("spec", ACTIVE)
def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undefended: torch.Tensor
) -> None:
    check_interrupted(spec, tmp_path, monkeypatch, undefended)
