"""The contract of metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from leakscope.core import seeds
from leakscope.core.metric import METRICS, Metric, Reference
from leakscope.core.spec import describe
from leakscope.testing.synthetic import smooth_images

PICTURES = 8


class MetricContract:
    """Subclass it and give a `metric` fixture; `shape` where it needs larger or coloured pictures.

    Set `device` to run the same suite elsewhere: "cuda", or "sim:1" of `leakscope.testing.device`.
    """

    shape: tuple[int, int, int] = (1, 16, 16)
    device: ClassVar[str] = "cpu"

    @pytest.fixture
    def metric(self) -> Metric:
        raise NotImplementedError("give the metric under test as a fixture called 'metric'")

    @pytest.fixture
    def root(self) -> Path | None:
        """Where weights live."""
        folder = os.environ.get("LEAKSCOPE_DATA")
        return Path(folder) if folder else None

    @pytest.fixture(autouse=True)
    def _available(self, metric: Metric, root: Path | None) -> None:
        reason = metric.unavailable(root)
        if reason is not None:
            pytest.skip(reason)

    def truth(self) -> Tensor:
        return smooth_images(PICTURES, "metric-truth", self.shape).to(self.device)

    def guess(self, noise: float = 0.1) -> Tensor:
        truth = self.truth()
        rng = seeds.generator(0, "metric-noise", device=self.device)
        return (truth + noise * torch.randn(truth.shape, generator=rng, device=self.device)).clamp(0, 1)

    def reference(self, root: Path | None) -> Reference:
        mean = smooth_images(40, "metric-public", self.shape).mean(0).to(self.device)
        return Reference(mean.expand(PICTURES, *self.shape), root)

    def test_one_finite_value_an_image(self, metric: Metric, root: Path | None) -> None:
        values = metric(self.guess(), self.truth(), self.reference(root))
        assert values.shape == ((1,) if metric.of_set else (PICTURES,)) or (metric.of_set and values.ndim == 0)
        assert values.isfinite().all()
        assert not values.requires_grad

    def test_the_truth_leaks_most(self, metric: Metric, root: Path | None) -> None:
        truth, reference = self.truth(), self.reference(root)
        sign = 1 if metric.more_leak == "high" else -1
        best = sign * metric(truth, truth, reference)
        assert not best.isnan().any()
        for noise in (0.05, 0.3):
            assert (sign * metric(self.guess(noise), truth, reference) < best).all()

    def test_more_noise_leaks_less(self, metric: Metric, root: Path | None) -> None:
        truth, reference = self.truth(), self.reference(root)
        sign = 1 if metric.more_leak == "high" else -1
        low, high = (sign * metric(self.guess(noise), truth, reference).mean() for noise in (0.02, 0.5))
        assert low > high

    def test_images_do_not_see_each_other(self, metric: Metric, root: Path | None) -> None:
        """A value depends on the guess of its own image only, whatever is guessed beside it and in whatever order."""
        if metric.of_set:
            pytest.skip("one number for the whole set")
        guess, truth, reference = self.guess(), self.truth(), self.reference(root)
        whole = metric(guess, truth, reference)
        order = torch.randperm(PICTURES, generator=seeds.generator(0, "order")).to(self.device)
        shuffled = metric(guess[order], truth[order], Reference(reference.class_mean[order], root))
        assert torch.allclose(shuffled, whole[order], rtol=1e-4, atol=1e-5)
        others = torch.cat((guess[:1], 1 - guess[1:]))
        assert torch.allclose(metric(others, truth, reference)[:1], whole[:1], rtol=1e-4, atol=1e-5)

    def test_inputs_are_not_changed(self, metric: Metric, root: Path | None) -> None:
        guess, truth, reference = self.guess(), self.truth(), self.reference(root)
        metric(guess, truth, reference)
        assert torch.equal(guess, self.guess())
        assert torch.equal(truth, self.truth())

    def test_is_its_description(self, metric: Metric) -> None:
        assert METRICS.build(describe(metric)) == metric
