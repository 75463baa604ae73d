"""Every penalty at the cut in the real training loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from leakscope.core import seeds
from leakscope.core.defense import Defense, build_defense
from leakscope.core.model import SplitModel
from leakscope.pipeline.train import Training, _Run, train
from leakscope.testing.synthetic import CPU, image_set, small_split

WEIGHTED = ["mixcon", "unicon", "nopeek", "cem", "cem-logdet", "cem-gated", "cem-slot", "cem-fused", "adversarial"]
ACTIVE = [
    "mixcon",
    "unicon",
    "nopeek",
    "cem:two_stage=true",
    "cem-logdet",
    "cem-gated:warmup=1,form=published",
    "cem-gated:warmup=1",
    "cem-slot:warmup=1,form=published,settings={slots: 2}",
    "cem-slot:warmup=1,settings={slots: 2}",
    "cem-fused:warmup=1,settings={slots: 2}",
    "adversarial:threshold=0,width=8,blocks=1",
    "tied-sparse",
    "patrol:share=0.5,above=4,at=0.5",
    "tied-sparse+gaussian:0.025+cem-logdet+nopeek:0.1",
]
TRAINING = Training(epochs=2, batch=8, optimizer="sgd", learning_rate=0.01)


def _split(spec: str) -> SplitModel:
    defense: Defense = build_defense(spec)
    with seeds.ambient(0, "rebuild"):
        split = defense.rebuild(small_split(), image_set(2, "private").images)
    split.defense = defense
    return split


def _weights(split: SplitModel) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in split.parameters()])


@pytest.fixture(scope="module")
def undefended() -> torch.Tensor:
    return _weights(train(_split("none"), image_set(24, "private"), TRAINING, seed=0, device=CPU)[0])


@pytest.mark.parametrize("name", WEIGHTED)
def test_weight_zero_trains_the_undefended_network_bit_for_bit(name: str, undefended: torch.Tensor) -> None:
    split, history, _ = train(_split(f"{name}:0"), image_set(24, "private"), TRAINING, seed=0, device=CPU)
    assert torch.equal(_weights(split), undefended)
    assert history.penalty == [0.0, 0.0]


@pytest.mark.parametrize("spec", ACTIVE)
def test_mixed_precision_trains(spec: str) -> None:
    """Penalties are computed in single precision: half of it has no digits for small variances."""
    data, penalties = image_set(24, "private"), []
    for mixed in (False, True):
        training = Training(epochs=2, batch=24, optimizer="sgd", learning_rate=1e-4, mixed_precision=mixed)
        split, history, _ = train(_split(spec), data, training, seed=0, device=CPU)
        assert _weights(split).isfinite().all()
        penalties.append(history.penalty)
    assert penalties[1] == pytest.approx(penalties[0], rel=0.05, abs=0.01)


@pytest.mark.parametrize("spec", ACTIVE)
def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undefended: torch.Tensor
) -> None:
    data, checkpoint = image_set(24, "private"), tmp_path / "checkpoint.pt"
    whole, history, notes = train(_split(spec), data, TRAINING, seed=0, device=CPU)
    assert _weights(whole).isfinite().all()
    assert _weights(whole).shape != undefended.shape or not torch.equal(_weights(whole), undefended)
    json.dumps(notes, allow_nan=False)

    save = _Run.save

    def save_once_then_stop(run: _Run, path: Path | None) -> None:
        run.saved_at -= 60
        save(run, path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_Run, "save", save_once_then_stop)
        with pytest.raises(KeyboardInterrupt):
            train(_split(spec), data, TRAINING, seed=0, device=CPU, checkpoint=checkpoint)
    resumed, again, notes_again = train(_split(spec), data, TRAINING, seed=0, device=CPU, checkpoint=checkpoint)
    assert torch.equal(_weights(whole), _weights(resumed))
    assert history.penalty == again.penalty
    assert notes == notes_again
