"""Every metric keeps its contract on an accelerator, and gives the CPU's numbers there, without float64 too."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from leakscope.core import seeds
from leakscope.core.metric import METRICS, Metric
from leakscope.metrics.identity import IdentityDistance, Reidentified
from leakscope.metrics.recognition import IdentityMetric, Judged
from leakscope.nn import alexnet
from leakscope.testing import MetricContract, device

from . import methods


@pytest.fixture(scope="session")
def stand_in_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with weights of the right names and shapes, and random numbers."""
    rng = torch.Generator().manual_seed(0)
    tensors = {}
    for index, shape in {
        0: (64, 3, 11),
        3: (192, 64, 5),
        6: (384, 192, 3),
        8: (256, 384, 3),
        10: (256, 256, 3),
    }.items():
        kernel = (*shape, shape[2])
        tensors[f"features.{index}.weight"] = (
            torch.randn(kernel, generator=rng) * (2 / (shape[1] * shape[2] ** 2)) ** 0.5
        )
        tensors[f"features.{index}.bias"] = 0.1 * torch.randn(shape[0], generator=rng)
    for index, width in enumerate((64, 192, 384, 256, 256)):
        tensors[f"lin{index}"] = torch.rand(width, generator=rng)
    root = tmp_path_factory.mktemp("root")
    (root / "weights").mkdir()
    save_file(tensors, root / "weights" / alexnet.FILE)
    return root


def metric_of(spec: Any) -> Metric:
    metric = METRICS.build(spec)
    assert isinstance(metric, Metric)
    return metric


@pytest.fixture(scope="session")
def identity(stand_in_root: Path) -> Metric:
    """The metric with a small program of our own in the place of the face network."""
    file = stand_in_root / "weights" / "faces.pt2"
    program = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(program.eval(), (torch.rand(4, 3, 64, 64),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, file)
    return metric_of({"kind": "identity", "file": file.name, "sha256": sha256(file.read_bytes()).hexdigest()})


class OnCpu(MetricContract):
    shape = (3, 32, 32)


class OnDevice(OnCpu):
    device = methods.DEVICE


class TestIdentity(OnDevice):
    shape = (3, 64, 64)

    @pytest.fixture
    def metric(self, identity: Metric) -> Metric:
        return identity

    @pytest.fixture
    def root(self, stand_in_root: Path) -> Path:
        return stand_in_root


def test_those_picked_out_again_are_the_cpus(identity: Metric, stand_in_root: Path) -> None:
    """Half of the guesses show somebody else."""
    assert isinstance(identity, IdentityDistance)
    metric, here = Reidentified(identity.file, identity.sha256), OnCpu()
    here.shape = (3, 64, 64)
    truth, guess = here.truth(), here.guess()
    guess[::2] = guess[::2].roll(1, 0)
    found = metric(guess.to(methods.DEVICE), truth.to(methods.DEVICE), here.reference(stand_in_root))
    assert found.tolist() == [0.0, 1.0] * (len(truth) // 2)


@pytest.mark.parametrize("name", methods.METRICS)
class TestMetrics(OnDevice):
    @pytest.fixture
    def metric(self, name: str) -> Metric:
        return metric_of(methods.METRICS[name])

    @pytest.fixture
    def root(self, stand_in_root: Path) -> Path:
        return stand_in_root


@pytest.mark.parametrize("name", methods.METRICS)
def test_numbers_are_the_cpus_with_float64_and_without(name: str, stand_in_root: Path) -> None:
    metric, here, there = metric_of(methods.METRICS[name]), OnCpu(), OnDevice()
    wanted = metric(here.guess(), here.truth(), here.reference(stand_in_root))
    found = metric(there.guess(), there.truth(), there.reference(stand_in_root))
    torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=1e-4, atol=1e-6)
    with device.without_float64():
        narrow = metric(there.guess(), there.truth(), there.reference(stand_in_root))
    torch.testing.assert_close(narrow.cpu(), wanted.cpu(), rtol=1e-4, atol=1e-6)


def judged(place: str) -> Judged:
    """Three reconstructions of each of four identities, as an evaluation network sees them on a device."""
    rng = seeds.generator(0, "judged")
    tensors: dict[str, Any] = {
        "classes": torch.tensor([0, 2, 3, 6]),
        "scores": torch.randn(4, 3, 7, generator=rng),
        "features": torch.randn(4, 3, 5, generator=rng),
        "believed": torch.randint(7, (4, 3), generator=rng),
        "private": torch.randn(42, 5, generator=rng),
        "labels": torch.arange(42) % 7,
    }
    return Judged(**{name: tensor.to(place) for name, tensor in tensors.items()}, ceiling=0.9)


@pytest.mark.parametrize("name", methods.METRICS_OF_IDENTITIES)
def test_identities_are_judged_as_on_the_cpu_with_float64_and_without(name: str) -> None:
    metric = METRICS.build(name)
    assert isinstance(metric, IdentityMetric)
    wanted = metric(judged("cpu"))
    assert wanted.isfinite().all()
    torch.testing.assert_close(metric(judged(methods.DEVICE)).cpu(), wanted, rtol=1e-4, atol=1e-6)
    with device.without_float64():
        torch.testing.assert_close(metric(judged(methods.DEVICE)).cpu(), wanted, rtol=1e-4, atol=1e-6)
