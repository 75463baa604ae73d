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

    @pytest.fixture
    def metric(self) -> Metric:
        metric = METRICS.build("identity")
        assert isinstance(metric, Metric)
        return metric

    @pytest.fixture
    def root(self, shared_data: Path) -> Path:
        return shared_data
