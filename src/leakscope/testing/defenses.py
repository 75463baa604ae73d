"""The contract of defences."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import DEFENSES, Defense, Stack, Step, build_defense
from leakscope.core.model import SplitModel
from leakscope.core.spec import describe
from leakscope.testing.ambient import ambient_states
from leakscope.testing.synthetic import CLASSES, image_set, small_split

BATCH = 12


class DefenseContract:
    """Subclass it and give a `defense` fixture, and a `neutral` one when its strength can be zero.

    Set `device` to run the same suite elsewhere: "cuda", or "sim:1" of `leakscope.testing.device`.
    """

    device: ClassVar[str] = "cpu"

    @pytest.fixture
    def defense(self) -> Defense:
        raise NotImplementedError("give the defence under test as a fixture called 'defense'")

    @pytest.fixture
    def neutral(self) -> Defense | None:
        """The same defence at zero strength, which must change nothing, bit for bit."""
        return None

    @staticmethod
    def batch() -> ImageSet:
        return image_set(BATCH, "defended")

    def rng(self, seed: int, stage: str) -> torch.Generator:
        return seeds.generator(seed, stage, device=self.device)

    def images(self) -> Tensor:
        """The batch where the network works."""
        return self.batch().images.to(self.device)

    def built(self, defense: Defense) -> SplitModel:
        """The split as training would get it: rebuilt on the CPU, then moved."""
        with seeds.ambient(0, "rebuild"):
            split = defense.rebuild(small_split(), self.batch().images)
        split.defense = defense
        return split.to(self.device)

    def step(self, defense: Defense) -> tuple[SplitModel, Step, nn.Module]:
        """One forward pass in training, as a defence sees it: data and their generators stay on the CPU."""
        split, data = self.built(defense), defense.augment(self.batch(), seeds.generator(0, "augment"))
        aux = defense.setup(split, data, seeds.generator(0, "setup")).to(self.device)
        split.train()
        defense.before_epoch(split, aux, data, 0)
        rng = self.rng(0, "step")
        x, y = data.images.to(self.device), data.labels.to(self.device)
        result = split.run(x, rng)
        task_loss = nn.functional.cross_entropy(result.scores, y)
        step = Step(
            x,
            y,
            result.features,
            result.released,
            result.scores,
            task_loss,
            split,
            aux,
            epoch=0,
            epochs=2,
            learning_rate=0.1,
            rng=rng,
        )
        return split, step, aux

    def released(self, defense: Defense, *, training: bool = False) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            z = self.built(defense).eval().encode(self.images())
        return z, defense.release(z, self.rng(0, "release"), training=training)

    @pytest.mark.parametrize("training", [False, True])
    def test_release_keeps_shape_and_stays_finite(self, defense: Defense, training: bool) -> None:
        z, released = self.released(defense, training=training)
        assert released.shape == z.shape
        assert released.dtype == z.dtype
        assert released.isfinite().all()

    def test_release_is_a_function_of_its_generator(self, defense: Defense) -> None:
        ambient = ambient_states(self.device)
        (z, first), (_, second) = self.released(defense), self.released(defense)
        assert torch.equal(first, second)
        assert all(map(torch.equal, ambient, ambient_states(self.device))), "it drew from torch's ambient generator"
        before = z.clone()
        defense.release(z, self.rng(1, "release"))
        assert torch.equal(z, before), "it changed the features in place"

    def test_release_does_not_mix_pictures(self, defense: Defense) -> None:
        """What leaves one client cannot depend on the pictures of another."""
        z, released = self.released(defense)
        changed = z.clone()
        changed[-1] = 0
        again = defense.release(changed, self.rng(0, "release"))
        assert torch.equal(released[:-1], again[:-1])

    def test_gradients_reach_the_encoder(self, defense: Defense) -> None:
        split, step, aux = self.step(defense)
        penalty = defense.penalty(step)
        loss = step.task_loss if penalty is None else step.task_loss + penalty
        assert loss.isfinite()
        defense.backward(loss, step)
        trainable = defense.trainable(split)
        parameters = dict(split.named_parameters())
        assert trainable <= set(parameters)
        gradients = [p.grad for name, p in parameters.items() if name in trainable and p.grad is not None]
        assert gradients
        assert all(gradient.isfinite().all() for gradient in gradients)
        first = next((name for name in parameters if name in trainable), None)
        assert first is not None
        assert parameters[first].grad is not None, f"no gradient reaches {first}"
        assert parameters[first].grad.abs().sum() > 0, f"no gradient reaches {first}"  # type: ignore[union-attr]
        defense.after_step(split, aux)
        assert all(p.isfinite().all() for p in split.parameters())
        defense.notes(split, aux)

    def test_zero_strength_is_no_defence(self, neutral: Defense | None) -> None:
        if neutral is None:
            pytest.skip("has no zero strength")
        z, released = self.released(neutral)
        assert torch.equal(z, released)
        _, step, _ = self.step(neutral)
        assert neutral.penalty(step) is None
        assert torch.equal(step.features, step.released)

    def test_stacks(self, defense: Defense) -> None:
        stack = Stack((defense, Defense()))
        assert torch.equal(self.released(stack)[1], self.released(defense)[1])
        split, step, aux = self.step(stack)
        penalty = stack.penalty(step)
        stack.backward(step.task_loss if penalty is None else step.task_loss + penalty, step)
        stack.after_step(split, aux)
        alone = defense.penalty(self.step(defense)[1])
        assert (penalty is None) == (alone is None)
        if penalty is not None and alone is not None:
            assert torch.allclose(penalty, alone)

    def test_rebuilt_split_runs_and_round_trips(self, defense: Defense) -> None:
        split = self.built(defense).eval()
        images = self.images()
        with torch.no_grad():
            scores = split(images, self.rng(0, "run"))
        assert scores.shape == (BATCH, CLASSES)
        state = split.state_dict()
        state = {name: tensor + 0.01 if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        twin, other = self.built(defense).eval(), self.built(defense).eval()
        twin.load_state_dict(state)
        other.load_state_dict(twin.state_dict())
        with torch.no_grad():
            first, second = (model(images, self.rng(0, "run")) for model in (twin, other))
        assert torch.equal(first, second)
        assert first.isfinite().all()

    def test_is_its_description(self, defense: Defense) -> None:
        assert build_defense(describe(defense)) == defense
        assert defense.kind_name in DEFENSES
