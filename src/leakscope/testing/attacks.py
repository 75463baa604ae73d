"""The contract of attacks."""

from __future__ import annotations

import builtins
import dataclasses
import json
import time
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.attack import ATTACKS, Attack, Observed, Prepared, Reconstruction
from leakscope.core.errors import NotGranted, UsageError
from leakscope.core.model import SplitModel
from leakscope.core.results import Diagnostics
from leakscope.core.spec import describe
from leakscope.core.threat import Access, View
from leakscope.testing.ambient import ambient_states
from leakscope.testing.synthetic import CLASSES, SHAPE, small_split, small_view, smooth_images
from leakscope.testing.watching import counting_split, watched

VICTIMS = 6
SECONDS = 30.0  # of processor time, on a busy machine


_QUESTIONS = {Access.QUERY, Access.SCORES, Access.LABELS}


class AttackContract:
    """Subclass it and give an `attack` fixture; small settings keep it quick.

    A class attack that asks the target must be able to start with 50 queries. Set `device` to run the same
    suite elsewhere: "cuda", or "sim:1" of `leakscope.testing.device`.
    """

    device: ClassVar[str] = "cpu"

    @pytest.fixture
    def attack(self) -> Attack:
        raise NotImplementedError("give the attack under test as a fixture called 'attack'")

    @staticmethod
    def truth() -> Tensor:
        return smooth_images(VICTIMS, "victims")

    def rng(self, seed: int, stage: str) -> torch.Generator:
        return seeds.generator(seed, stage, device=self.device)

    def target(self) -> SplitModel:
        """The network under attack."""
        return small_split(device=torch.device(self.device))

    def view(self, access: frozenset[Access], **handed: Any) -> View:
        """What the attack is handed of the target."""
        return small_view(access, device=torch.device(self.device), **handed)

    def seen(self, attack: Attack) -> Observed:
        """What the target gives away about the victims."""
        if attack.goal == "identities":
            return Observed(classes=torch.arange(CLASSES, device=self.device))
        with torch.no_grad():
            return Observed(features=self.target().release(self.truth().to(self.device), self.rng(0, "victims")))

    def run(self, attack: Attack, view: View, seed: int = 0) -> Reconstruction:
        prepared = attack.prepare(view, self.rng(seed, "prepare"))
        return attack.reconstruct(view, prepared, self.seen(attack), self.rng(seed, "reconstruct"))

    def test_pictures_are_finite_and_in_range(self, attack: Attack) -> None:
        started = time.process_time()
        result = self.run(attack, self.view(attack.needs))
        assert time.process_time() - started < SECONDS
        each = result.diagnostics.per_class if attack.goal == "identities" else 1
        assert result.images.shape == (len(self.seen(attack)) * each, *SHAPE)
        assert result.images.dtype == torch.float32
        assert result.images.isfinite().all()
        assert result.images.min() >= 0
        assert result.images.max() <= 1
        json.dumps(result.diagnostics.as_json(), allow_nan=False)

    def test_same_seed_same_output(self, attack: Attack) -> None:
        ambient = ambient_states(self.device)
        first, second = (self.run(attack, self.view(attack.needs)) for _ in range(2))
        assert torch.equal(first.images, second.images)
        assert all(map(torch.equal, ambient, ambient_states(self.device))), "it drew from torch's ambient generator"

    def test_inputs_are_not_changed(self, attack: Attack) -> None:
        view, seen = self.view(attack.needs), self.seen(attack)
        encoder = list(view.encoder.state_dict().values()) if Access.ENCODER in view else []
        prepared = attack.prepare(view, self.rng(0, "prepare"))
        present = seen.features if seen.features is not None else seen.classes
        watched = [view.public.images, *encoder, *prepared.tensors.values(), cast("Tensor", present)]
        before = [tensor.clone() for tensor in watched]
        attack.reconstruct(view, prepared, seen, self.rng(0, "reconstruct"))
        assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))

    def test_what_it_needs_is_all_it_needs(self, attack: Attack) -> None:
        """It runs on a view of exactly `needs`, and stops at a view that lacks one of them."""
        at_home = {Access.QUERY} if Access.ENCODER in attack.needs else set()  # follows from the encoder
        for missing in sorted(attack.needs - {Access.FEATURES} - at_home):
            with pytest.raises(NotGranted):
                self.run(attack, self.view(attack.needs - {missing}))

    def test_beats_the_mean_picture(self, attack: Attack) -> None:
        if attack.goal == "identities":
            pytest.skip("rebuilds classes: an untrained network has nothing to give away about them")
        view = self.view(attack.needs)
        truth, mean = self.truth(), view.public.images.mean(0)
        guess = self.run(attack, view).images.cpu()
        assert (guess - truth).square().mean() < 0.5 * (mean - truth).square().mean()

    def test_stays_within_its_budget(self, attack: Attack) -> None:
        """With few queries an attack ends with what it has; it never exceeds them, and never raises.

        A class attack has nothing to begin with when it may not ask at all: it says so in one line.
        """
        if not attack.needs & _QUESTIONS:
            pytest.skip("sends no queries")
        view = self.view(attack.needs, queries=50)
        assert self.run(attack, view).images.isfinite().all()
        assert 0 < view.budget.spent <= 50
        unable = self.view(attack.needs, queries=0)
        if attack.goal == "identities":
            with pytest.raises(UsageError, match="queries"):
                self.run(attack, unable)
        else:
            assert self.run(attack, unable).images.isfinite().all()

    def test_every_question_is_counted(self, attack: Attack) -> None:
        """The target itself counts the pictures it is shown; an attack without weights shows it none uncounted."""
        if not attack.needs & _QUESTIONS or attack.needs & {Access.ENCODER, Access.HEAD}:
            pytest.skip("computes with weights at home")
        for queries in (50, 400):
            split = counting_split()
            view = self.view(attack.needs, queries=queries, split=split)
            self.run(attack, view)
            assert split.shown.pictures == view.budget.spent <= queries

    def test_sees_only_its_view(self, attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
        """It reads what a view offers and no file: not its inside, no evaluator, no private picture."""
        view = watched(self.view(attack.needs))
        if attack.goal == "identities":
            monkeypatch.setattr(builtins, "open", _no_file)
        self.run(attack, view)

    def test_a_class_is_the_same_alone_and_in_a_batch(self, attack: Attack) -> None:
        if attack.goal == "pictures":
            pytest.skip("rebuilds observed inputs")
        view = self.view(attack.needs)
        prepared = attack.prepare(view, self.rng(0, "prepare"))

        def images(*classes: int) -> Tensor:
            seen = Observed(classes=torch.tensor(classes, device=self.device))
            guess = attack.reconstruct(view, prepared, seen, self.rng(0, "reconstruct")).images
            return guess.reshape(len(classes), -1, *SHAPE)

        together, backwards = images(*range(CLASSES)), images(*reversed(range(CLASSES)))
        for label in range(CLASSES):
            torch.testing.assert_close(images(label)[0], together[label], atol=1e-4, rtol=0)
            torch.testing.assert_close(backwards[CLASSES - 1 - label], together[label], atol=1e-4, rtol=0)

    def test_survives_zero_steps(self, attack: Attack) -> None:
        if "steps" not in {field.name for field in dataclasses.fields(cast("Any", attack))}:
            pytest.skip("takes no steps")
        idle = dataclasses.replace(cast("Any", attack), steps=0)
        assert self.run(idle, self.view(attack.needs)).images.isfinite().all()

    def test_prepared_is_plain_data(self, attack: Attack) -> None:
        """What is cached must survive being written: named tensors, and notes that are JSON."""
        view = self.view(attack.needs)
        prepared = attack.prepare(view, self.rng(0, "prepare"))
        json.dumps(prepared.diagnostics.as_json(), allow_nan=False)
        assert all(tensor.is_contiguous() for tensor in prepared.tensors.values())
        read_back = Prepared(
            {name: tensor.clone() for name, tensor in prepared.tensors.items()},
            Diagnostics.from_json(json.loads(json.dumps(prepared.diagnostics.as_json()))),
        )
        seen = self.seen(attack)
        first = attack.reconstruct(view, prepared, seen, self.rng(0, "reconstruct"))
        second = attack.reconstruct(view, read_back, seen, self.rng(0, "reconstruct"))
        assert torch.equal(first.images, second.images)

    def test_is_its_description(self, attack: Attack) -> None:
        assert ATTACKS.build(describe(attack)) == attack


_open = builtins.open


def _no_file(path: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuses, except what is opened for an import: torch makes some of its own when they are first needed."""
    if not str(path).endswith((".py", ".pyc")):
        raise NotGranted("an attack reads no files")
    return _open(path, *args, **kwargs)
