"""The training loop: it learns, resumes to the same numbers, and stops on validation, not on test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Stack, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.seeds import ambient, generator
from leakscope.defenses.gaussian import Gaussian
from leakscope.experiments import training as training_module
from leakscope.experiments.training import Training, _augmented, predict, train

CPU = torch.device("cpu")


def _data(n: int = 200) -> ImageSet:
    """Two classes: bright left half, bright right half."""
    rng = generator(0, "stripes")
    labels = torch.arange(n) % 2
    images = 0.4 * torch.rand(n, 1, 8, 8, generator=rng)
    images[labels == 0, :, :, :4] += 0.3
    images[labels == 1, :, :, 4:] += 0.3
    return ImageSet(images, labels, ("left", "right"))


def _split(defense: Defense | None = None) -> SplitModel:
    with ambient(0, "net"):
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(256, 2),
        )
    return SplitModel(model, "2", defense=defense)


def _trained(training: Training, checkpoint: Path | None = None, defense: Defense | None = None) -> SplitModel:
    return train(_split(defense), _data(), training, seed=3, device=CPU, checkpoint=checkpoint)[0]


def _same(a: nn.Module, b: nn.Module) -> bool:
    other = b.state_dict()
    return all(torch.equal(tensor, other[name]) for name, tensor in a.state_dict().items())


def test_it_learns() -> None:
    split = _trained(Training(epochs=4, batch=20))
    data = _data()
    scores = predict(split, data.images, generator(0, "p"), CPU)
    assert (scores.argmax(1) == data.labels).float().mean() > 0.95


def test_the_same_seed_gives_the_same_weights() -> None:
    training = Training(epochs=2, batch=20)
    assert _same(_trained(training), _trained(training))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    training = Training(epochs=4, batch=20, optimizer=optimizer, learning_rate=0.01)  # type: ignore[arg-type]
    defense = Gaussian(sigma=0.3)
    whole = _trained(training, defense=defense)
    checkpoint = tmp_path / "deep" / "checkpoint.pt"
    monkeypatch.setattr(
        training_module._Run, "saved_at", property(lambda run: -1e9, lambda run, t: None), raising=False
    )
    epochs = 0
    one_epoch = training_module._Run.one_epoch

    def dies_in_the_third(run: training_module._Run, bar: object) -> None:
        nonlocal epochs
        epochs += 1
        if epochs == 3:
            raise KeyboardInterrupt
        one_epoch(run, bar)  # type: ignore[arg-type]

    monkeypatch.setattr(training_module._Run, "one_epoch", dies_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        _trained(training, checkpoint, defense)
    assert checkpoint.exists()
    resumed = _trained(training, checkpoint, defense)
    assert epochs == 3 + 2  # epochs three and four only
    assert _same(whole, resumed)


def test_early_stopping_returns_the_best_epoch_by_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.9, 0.8, 0.7, 0.6])
    kept: list[dict[str, Tensor]] = []

    def validate(run: training_module._Run, validation: ImageSet) -> None:
        assert len(validation) == 20  # a tenth of the private data
        value = next(scores)
        state = {name: tensor.clone() for name, tensor in run.split.state_dict().items()}
        kept.append(state)
        if value > max(run.history.validation, default=-1.0):
            run.best = state
        run.history.validation.append(value)

    monkeypatch.setattr(training_module._Run, "validate", validate)
    split, history, _ = train(_split(), _data(), Training(epochs=9, batch=20, patience=2), seed=0, device=CPU)
    assert history.validation == [0.5, 0.9, 0.8, 0.7]
    assert all(torch.equal(kept[1][name], tensor) for name, tensor in split.state_dict().items())


def test_validation_accuracy_is_measured() -> None:
    _, history, _ = train(_split(), _data(), Training(epochs=3, batch=20, patience=3), seed=0, device=CPU)
    assert history.validation[-1] > 0.9


class Counters(nn.Module):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.register_buffer("steps", torch.zeros(()))


@dataclass(frozen=True)
class Recording(Defense):
    """Counts its hooks in the module it carries, and learns one parameter of its own."""

    kind_name = "recording"
    revision = 1
    weight: float = 1.0

    def setup(self, split: SplitModel, data: ImageSet, rng: torch.Generator) -> nn.Module:
        return Counters()

    def trainable(self, split: SplitModel) -> set[str]:
        return {name for name in super().trainable(split) if "model.5" in name}

    def penalty(self, step: Step) -> Tensor | None:
        assert isinstance(step.aux, Counters)
        return self.weight * (step.aux.gain - 3).square()

    def after_step(self, split: SplitModel, aux: nn.Module) -> None:
        assert isinstance(aux, Counters)
        aux.steps += 1

    def notes(self, split: SplitModel, aux: nn.Module) -> dict[str, float]:
        assert isinstance(aux, Counters)
        return {"gain": aux.gain.item(), "steps": aux.steps.item()}


def test_hooks_are_called_and_frozen_weights_stay() -> None:
    for defense in (Recording(), Stack((Recording(), Gaussian(sigma=0.0)))):
        split = _split(defense)
        before = split.model[0].weight.clone()  # type: ignore[index]
        split, _, notes = train(split, _data(), Training(epochs=2, batch=20, learning_rate=0.1), seed=0, device=CPU)
        notes = notes.get("recording", notes)
        assert notes["steps"] == 20
        assert notes["gain"] > 1.5
        assert torch.equal(split.model[0].weight, before)  # type: ignore[index]


def test_divergence_stops_with_epoch_batch_and_remedy() -> None:
    with pytest.raises(UsageError, match="epoch 1, batch 1"):
        _trained(Training(epochs=1, batch=20), defense=Recording(weight=float("inf")))


def test_no_epochs_changes_nothing() -> None:
    assert _same(_trained(Training(epochs=0)), _split())


@pytest.mark.parametrize("schedule", ["cosine", "multistep", "constant"])
def test_schedules_warm_up_and_never_rise_after(schedule: str) -> None:
    training = Training(schedule=schedule, warmup=0.1, learning_rate=0.5)  # type: ignore[arg-type]
    rates = [training.learning_rate_at(step / 1000) for step in range(1000)]
    assert rates[0] == 0
    assert max(rates) == pytest.approx(0.5)
    assert all(a >= b for a, b in pairwise(rates[100:]))
    assert replace(training, warmup=0.0).learning_rate_at(0.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("channels", "mirror"), [(3, True), (1, True), (1, False)])
def test_augmentation_shifts_and_mirrors_whole_pictures(channels: int, mirror: bool) -> None:
    x = torch.zeros(64, channels, 16, 16)
    x[:, :, 6:10, 5:8] = torch.arange(1.0, 13).view(4, 3)
    out = _augmented(x, generator(0, "shift"), mirror=mirror)
    torch.testing.assert_close(out.flatten(1).sum(1), x.flatten(1).sum(1))  # nothing near the border to lose
    assert len({tuple(row.flatten().tolist()) for row in out}) > 10
    largest, second = out[:, 0].flatten(1).topk(2).indices.T % 16  # columns of 12 and of 11, on its left
    turned = (largest < second).float().mean().item()
    assert 0.3 < turned < 0.7 if mirror else turned == 0


@pytest.mark.parametrize(
    "field", [{"epochs": -1}, {"batch": 1}, {"learning_rate": 0.0}, {"warmup": 1.0}, {"patience": 0}]
)
def test_impossible_settings_are_refused(field: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Training(**field)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field",
    [{"pictures": 10, "batch": 20}, {"nesterov": True}, {"nesterov": True, "optimizer": "sgd", "momentum": 0.0}],
)
def test_short_epochs_and_nesterov_ask_for_what_they_need(field: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Training(**field)  # type: ignore[arg-type]


def test_a_short_epoch_takes_so_many_pictures() -> None:
    training = Training(epochs=3, batch=20, pictures=70)
    _, history, notes = train(_split(Recording()), _data(), training, seed=0, device=CPU)
    assert notes["steps"] == 3 * 3
    assert len(history.loss) == 3


def test_nesterov_looks_ahead() -> None:
    """Two steps on the quadratic of `Recording`, by hand: v = m v + g, then the step g + m v."""
    plain = {"epochs": 1, "batch": 100, "optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.0, "warmup": 0.0}
    training = Training(**plain, schedule="constant", learning_rate=0.1, nesterov=True)  # type: ignore[arg-type]
    _, _, notes = train(_split(Recording()), _data(), training, seed=0, device=CPU)
    gain, speed = 1.0, 0.0
    for _ in range(2):
        slope = 2 * (gain - 3)
        speed = 0.5 * speed + slope
        gain -= 0.1 * (slope + 0.5 * speed)
    assert notes["gain"] == pytest.approx(gain, abs=1e-5)
