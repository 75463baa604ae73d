"""The contract of priors."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.prior import PRIORS, Generator, Prior, PriorPlan, PriorState
from leakscope.core.seeds import generator
from leakscope.core.spec import describe
from leakscope.testing.synthetic import image_set, small_split


class PriorContract:
    """Subclass it and give a `prior` fixture; `shape` where its pictures have another.

    Set `device` to run the same suite elsewhere: "cuda", or "sim:1" of `leakscope.testing.device`.
    """

    device: ClassVar[str] = "cpu"
    shape: ClassVar[tuple[int, int, int]] = (1, 16, 16)

    @pytest.fixture
    def prior(self) -> Prior:
        raise NotImplementedError("give the prior under test as a fixture called 'prior'")

    @classmethod
    def public(cls) -> ImageSet:
        return image_set(40, "public", cls.shape)

    @classmethod
    def fit(cls, prior: Prior, seed: int = 0, checkpoint: Path | None = None) -> PriorState:
        """Fitted as the pipeline does it: the generator and the pictures on the CPU, the work on the device."""
        device = torch.device(cls.device)
        split = small_split(device=device)
        scores = (lambda x: cast("Tensor", split(x))) if prior.reads_scores else None
        return prior.fit(cls.public(), generator(seed, "fit"), device=device, checkpoint=checkpoint, scores=scores)

    @classmethod
    @cache
    def state(cls, prior: Prior) -> PriorState:
        return cls.fit(prior)

    def made(self, prior: Prior) -> Generator:
        return prior.generator(self.state(prior), torch.device(self.device))

    def rng(self, name: str) -> torch.Generator:
        return generator(0, name, device=self.device)

    def test_the_seed_decides(self, prior: Prior) -> None:
        before = self.public().images
        torch.manual_seed(1)
        first = self.state(prior).tensors
        torch.manual_seed(2)
        assert same(first, self.fit(prior).tensors)
        assert torch.equal(before, self.public().images)
        if "steps" in {field.name for field in dataclasses.fields(cast("Any", prior))}:  # it is trained
            assert not same(first, self.fit(prior, seed=1).tensors)

    def test_pictures_are_pixels_and_can_be_searched(self, prior: Prior) -> None:
        made = self.made(prior)
        channels, height, width = self.shape
        z = made.sample(5, self.rng("z"))
        assert z.shape == (5, made.latent)
        assert torch.equal(z, made.sample(5, self.rng("z")))
        z.requires_grad_(True)
        images = made.decode(z)
        assert images.shape == (5, *self.shape)
        assert images.dtype == torch.float32
        assert images.device == torch.empty(0, device=self.device).device
        assert images.min() >= 0
        assert images.max() <= 1
        opinion = made.implausibility(images)
        assert opinion.shape == (5,)
        (gradient,) = torch.autograd.grad(images.square().sum() + opinion.sum(), z)
        assert gradient.abs().sum(1).min() > 0
        assert not any(p.requires_grad for p in made.parameters())
        sheet = made.sheet(self.rng("s"), 2, 3)
        assert sheet.shape == (channels, 2 * height, 3 * width)
        assert torch.equal(sheet[:, height:, 2 * width :], made.pictures(6, self.rng("s"))[5])

    def test_nothing_depends_on_the_rest_of_a_batch(self, prior: Prior) -> None:
        made = self.made(prior)
        z = made.sample(6, self.rng("z"))
        images = made.decode(z)
        torch.testing.assert_close(torch.cat([made.decode(row[None]) for row in z]), images, atol=1e-5, rtol=1e-4)
        alone = torch.cat([made.implausibility(image[None]) for image in images])
        torch.testing.assert_close(alone, made.implausibility(images), atol=1e-4, rtol=1e-4)

    def test_styles_give_the_pictures_of_latents(self, prior: Prior) -> None:
        made = self.made(prior)
        z = made.sample(3, self.rng("z"))
        w = made.to_style(z)
        assert w.shape == (3, made.style)
        torch.testing.assert_close(made.from_style(w), made.decode(z))
        torch.testing.assert_close(made.from_style(w[:, None].expand(-1, made.layers, -1)), made.decode(z))
        assert prior.has_mapping == (made.slope != 1)

    def test_a_state_survives_the_store(self, prior: Prior) -> None:
        state, device = self.state(prior), torch.device(self.device)
        kept = PriorState(load(save(state.tensors)), state.notes)
        made = prior.generator(state, device)
        z = made.sample(2, self.rng("z"))
        assert torch.equal(prior.generator(kept, device).decode(z), made.decode(z))
        with pytest.raises(UsageError, match=r"pictures and the target reads 7×16×16"):
            prior.require_fit(state, (7, 16, 16))
        assert PRIORS.build(describe(prior)) == prior
        digest = self.public().digest()
        plan = PriorPlan(prior, digest, seed=0)
        assert plan.key == PriorPlan(PRIORS.build(describe(prior)), digest, seed=0).key
        assert plan.key != PriorPlan(prior, digest, seed=1).key


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """The same names, and the same numbers bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
