"""A defence in the real training loop: what tests of all families ask of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core import seeds
from leakscope.core.defense import build_defense
from leakscope.core.model import SplitModel
from leakscope.experiments.training import History, Training, _Run, train
from leakscope.testing.synthetic import CPU, image_set, small_split

TRAINING = Training(epochs=2, batch=8, optimizer="sgd", learning_rate=0.01)


def defended(spec: Any) -> SplitModel:
    defense = build_defense(spec)
    with seeds.ambient(0, "rebuild"):
        split = defense.rebuild(small_split(), image_set(2, "private").images)
    split.defense = defense
    return split


def weights(split: SplitModel) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in split.parameters()])


def trained(spec: Any, checkpoint: Path | None = None) -> tuple[SplitModel, History, dict[str, Any]]:
    return train(defended(spec), image_set(24, "private"), TRAINING, seed=0, device=CPU, checkpoint=checkpoint)


def check_interrupted(spec: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, undefended: torch.Tensor) -> SplitModel:
    """Stopped after its first checkpoint and begun again, training ends where it would have; returns the network."""
    whole, history, notes = trained(spec)
    assert weights(whole).isfinite().all()
    assert weights(whole).shape != undefended.shape or not torch.equal(weights(whole), undefended)
    json.dumps(notes, allow_nan=False)
    save = _Run.save

    def save_once_then_stop(run: _Run, path: Path | None) -> None:
        run.saved_at -= 60
        save(run, path)
        raise KeyboardInterrupt

    checkpoint = folder / "checkpoint.pt"
    with monkeypatch.context() as patch:
        patch.setattr(_Run, "save", save_once_then_stop)
        with pytest.raises(KeyboardInterrupt):
            trained(spec, checkpoint)
    resumed, again, notes_again = trained(spec, checkpoint)
    assert torch.equal(weights(whole), weights(resumed))
    assert history.penalty == again.penalty
    assert notes == notes_again
    return whole
