"""Every metric passes the contract that is shipped to third parties."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.core.metric import METRICS, Metric
from leakscope.testing import MetricContract

SPECS = [
    "leak",
    "mse",
    "psnr",
    "ssim",
    "ssim-padded",
    "cosine",
    "lpips",
    "psim:random-conv",
    "psim:alexnet",
    "fid:pixels",
    "fid:random-conv",
]


@pytest.mark.parametrize("spec", SPECS)
class TestMetrics(MetricContract):
    shape = (3, 32, 32)

    @pytest.fixture
    def metric(self, spec: str) -> Metric:
        metric = METRICS.build(spec)
        assert isinstance(metric, Metric)
        return metric

    @pytest.fixture
    def root(self, stand_in_root: Path) -> Path:
        return stand_in_root


class TestIdentity(MetricContract):
    shape = (3, 64, 64)

    name = "identity"

    @pytest.fixture
    def metric(self) -> Metric:
        metric = METRICS.build(self.name)
        assert isinstance(metric, Metric)
        return metric

    @pytest.fixture
    def root(self, shared_data: Path) -> Path:
        return shared_data


class TestReidentified(TestIdentity):
    name = "reidentified"

    def test_the_truth_leaks_most(self, metric: Metric, root: Path | None) -> None:
        """Yes or no: a picture that is nearly right is recognised as well as a right one."""
        truth, reference = self.truth(), self.reference(root)
        assert metric(truth, truth, reference).tolist() == [1.0] * len(truth)
        assert set(metric(self.guess(0.3), truth, reference).tolist()) <= {0.0, 1.0}
