"""What a device's name means here, and what schedulers are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakscope.core.errors import UsageError
from leakscope.runners.devices import chosen, is_scheduled, on_a_node, shared_out
from leakscope.runners.ray_cluster import _name, _resource


def test_names_of_this_machine() -> None:
    assert chosen("cpu") == torch.device("cpu")
    assert shared_out("cpu") == ["cpu"]
    for name in ("nonsense", "cuda:99"):
        with pytest.raises(UsageError, match="take --device cpu") as caught:
            chosen(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "there", "asked_for"),
    [
        ("cpu", "cpu", False),
        ("auto", "cpu", False),  # a login node says nothing about nodes
        ("cuda", "cuda", True),
        ("cuda:3", "cuda", True),  # the one that a job is given is its first
        ("xpu:1", "xpu", True),
        ("mps", "mps", True),
        ("sim:1", "sim:1", False),
    ],
)
def test_a_scheduler_is_asked_for_accelerators_only(name: str, there: str, asked_for: bool) -> None:
    assert on_a_node(name) == there
    assert is_scheduled(name) is asked_for


@pytest.mark.parametrize(("device", "gpus"), [("cpu", None), ("sim:1", None), ("cuda", 1), ("xpu", 1)])
def test_slurm_is_asked_for_a_gpu(tmp_path: Path, device: str, gpus: int | None) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed (extra: slurm)")
    from leakscope.runners.slurm import Slurm

    runner = Slurm(tmp_path, device, cluster="local")
    assert runner._executor._executor.parameters.get("gpus_per_node") == gpus
    assert runner._task.device == device


@pytest.mark.parametrize(
    ("device", "cluster", "resource", "name"),
    [
        ("cpu", {"GPU": 2.0}, None, "cpu"),
        ("auto", {}, None, "cpu"),
        ("auto", {"GPU": 2.0}, "GPU", "auto"),
        ("cuda:1", {"GPU": 2.0}, "GPU", "cuda"),
        ("xpu", {"GPU": 1.0}, "GPU", "xpu"),
        ("hpu", {"HPU": 8.0}, "HPU", "hpu"),
        ("mps", {}, None, "mps"),
        ("sim:1", {"GPU": 2.0}, None, "sim:1"),
    ],
)
def test_ray_is_asked_for_accelerators_of_the_kind(
    device: str, cluster: dict[str, Any], resource: str | None, name: str
) -> None:
    assert _resource(device, cluster) == resource
    assert _name(device, resource) == name


def test_a_cluster_without_the_device_is_refused() -> None:
    with pytest.raises(UsageError, match="has no HPU for --device hpu"):
        _resource("hpu", {"CPU": 8.0, "GPU": 2.0})
