"""Weights and exported folders of somebody else: no code, no bombs, no values that poison every score."""

from __future__ import annotations

import io
import json
import pickle
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from leakscope.core.errors import UsageError
from leakscope.models._exported import SCHEMA, Exported, sha256
from leakscope.models.architecture import MODELS
from leakscope.models.resolve import instantiate, resolve
from leakscope.models.weights import load_weights, read_state


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))


def refused(work: Callable[[], object], *words: str) -> None:
    start = time.monotonic()
    with pytest.raises(UsageError) as caught:
        work()
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e-41])
def test_values_that_no_trained_network_has(tmp_path: Path, value: float) -> None:
    state = network().state_dict()
    state["3.weight"] = torch.full_like(state["3.weight"], value)
    save_file(state, tmp_path / "w.safetensors")
    refused(lambda: load_weights(network(), tmp_path / "w.safetensors"), "3.weight", "export the weights again")


def test_a_few_denormal_values_are_fine(tmp_path: Path) -> None:
    """Weight decay leaves some in the dead channels of real networks."""
    state = network().state_dict()
    state["3.weight"][0, 0] = 1e-41
    save_file(state, tmp_path / "w.safetensors")
    load_weights(network(), tmp_path / "w.safetensors")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64])
def test_other_types_of_number_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    state = network().state_dict()
    state["3.weight"] = state["3.weight"].to(dtype)
    torch.save(state, tmp_path / "w.pt")
    refused(lambda: load_weights(network(), tmp_path / "w.pt"), "3.weight", "float32")


def test_sparse_weights_are_refused(tmp_path: Path) -> None:
    state = network().state_dict()
    state["3.weight"] = state["3.weight"].to_sparse()
    torch.save(state, tmp_path / "w.pt")
    refused(lambda: load_weights(network(), tmp_path / "w.pt"), "3.weight", "sparse")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {n: v.to(dtype) if v.is_floating_point() else v for n, v in network().state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    model = network()
    load_weights(model, tmp_path / "w.safetensors")
    assert torch.equal(model.state_dict()["3.weight"], state["3.weight"].float())


def test_a_value_beyond_the_networks_precision_is_infinite(tmp_path: Path) -> None:
    state = {n: v.double() if v.is_floating_point() else v for n, v in network().state_dict().items()}
    state["3.weight"][0, 0] = 1e300
    save_file(state, tmp_path / "w.safetensors")
    refused(lambda: load_weights(network(), tmp_path / "w.safetensors"), "1 NaN or infinite values of 432")


@pytest.mark.parametrize("prefix", ["net.", "model._orig_mod.", "lit.model.", "model.backbone."])
def test_prefixes_of_wrappers_with_other_tensors_beside_them(tmp_path: Path, prefix: str) -> None:
    """A Lightning checkpoint: the network below an attribute, a loss with weights of its own, the optimiser."""
    source = network()
    table = {prefix + name: value for name, value in source.state_dict().items()}
    table["criterion.weight"] = torch.ones(3)
    torch.save({"epoch": 3, "state_dict": table, "optimizer_states": [{"state": {}}]}, tmp_path / "last.ckpt")
    model = network()
    load_weights(model, tmp_path / "last.ckpt")
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), source.state_dict().values(), strict=True)
    )


def test_compiled_parts_inside_a_network(tmp_path: Path) -> None:
    source = network().state_dict()
    torch.save({name.replace("3.", "3._orig_mod."): value for name, value in source.items()}, tmp_path / "w.pt")
    model = network()
    load_weights(model, tmp_path / "w.pt")
    assert torch.equal(model.state_dict()["3.weight"], source["3.weight"])


def test_two_networks_in_one_file_are_not_chosen_between(tmp_path: Path) -> None:
    state = network().state_dict()
    both = {f"{who}.{name}": value for who in ("student", "teacher") for name, value in state.items()}
    torch.save(both, tmp_path / "w.pt")
    refused(lambda: load_weights(network(), tmp_path / "w.pt"), "2 such networks", "student", "save one")


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_an_archive_of_torch_export_is_refused_unread(tmp_path: Path) -> None:
    """Laid out as `torch.export.save` does, with a pickle where torch would read the weights."""
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/archive_format", "pt2")
        archive.writestr("net/models/model.json", "{}")
        archive.writestr("net/data/weights/weight_0", pickle.dumps(Trap(tmp_path / "mark")))
    (tmp_path / "net.pt").write_bytes((tmp_path / "net.pt2").read_bytes())
    for name in ("net.pt2", "net.pt"):
        refused(partial(read_state, tmp_path / name), "torch.export", "pt2:FILE")
    refused(lambda: resolve(str(tmp_path / "net.pt2")), "torch.export program", "trust_code=true")
    assert not (tmp_path / "mark").exists()


def test_torchscript_and_onnx_are_called_by_their_names(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(network().eval(), torch.rand(2, 1, 8, 8)), tmp_path / "w.pt")
    refused(lambda: read_state(tmp_path / "w.pt"), "TorchScript")
    (tmp_path / "w.onnx").write_bytes(b"\x08\x07")
    refused(lambda: read_state(tmp_path / "w.onnx"), "ONNX")


@pytest.mark.parametrize("name", ["full.pt", "a/b/full.pth", "last.ckpt", "model.safetensors", "pytorch_model.bin"])
def test_a_file_of_weights_as_the_network_explains_itself(name: str) -> None:
    refused(lambda: resolve(name), "may hold weights", "--model FILE.py:FACTORY", "--weights")


def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    whole = io.BytesIO()
    torch.save({"w": torch.zeros(16 << 20)}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for item in source.infolist():
            packed.writestr(item.filename, source.read(item))
    assert (tmp_path / "w.pt").stat().st_size < 1 << 20
    refused(lambda: read_state(tmp_path / "w.pt"), "many times its size")


@pytest.mark.parametrize(
    "spec",
    ["mlp:widths=[1000000000]", "convnet:widths=[1000000000,1000000000]", "mlp:widths=[100000000000000000]",
     "mlp:widths=[9000000000000000000]", "mlp:widths=[1000000,1000000],drift=1"],
)  # fmt: skip
def test_a_network_that_cannot_fit_is_refused_before_it_is_built(spec: str) -> None:
    refused(lambda: instantiate(MODELS.build(spec), (1, 28, 28), 10), "memory", "narrower")


def test_planning_a_network_draws_nothing() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        planned = instantiate(MODELS.build("convnet"), (1, 8, 8), 3)
        torch.manual_seed(7)
        plain = MODELS.build("convnet").build((1, 8, 8), 3)
    assert all(torch.equal(a, b) for a, b in zip(planned.parameters(), plain.parameters(), strict=True))


def exported(folder: Path, **changes: Any) -> Path:
    """A folder as `leakscope export` writes it, with fields of its description changed."""
    folder.mkdir(parents=True)
    save_file({"w": torch.zeros(2)}, folder / "model.safetensors")
    description = {
        "schema": SCHEMA, "architecture": {"kind": "mlp", "revision": 1, "widths": [4]}, "cut": "relu1",
        "defense": {"kind": "none"}, "input": {"shape": [1, 8, 8], "classes": ["a", "b"]},
        "files": {"model.safetensors": sha256(folder / "model.safetensors")}, "versions": {"leakscope": "0.2"},
        "seed": 0, "pictures": "0" * 24,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**description, **changes}))
    return folder


@pytest.mark.parametrize(
    "changes",
    [{"input": {"shape": [1, 8, "8"], "classes": []}}, {"input": {"shape": [1, -8, 8], "classes": ["a"]}},
     {"input": 5}, {"cut": ["a"]}, {"defense": "none"}, {"architecture": "mlp"}, {"architecture": []},
     {"architecture": {"kind": "mlp", "revision": 1, "widths": "x"}}, {"files": []}, {"files": {}}, {"versions": 1,
     "architecture": {"kind": "mlp", "revision": 99}}, {"architecture": {"kind": ["mlp"]}}],
)  # fmt: skip
def test_a_description_of_other_types_is_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    Exported.read(exported(tmp_path / "whole"))
    refused(lambda: Exported.read(exported(tmp_path / "changed", **changes)))


def test_widths_of_a_billion_in_an_exported_folder(tmp_path: Path) -> None:
    plain = {"kind": "mlp", "revision": 1, "widths": [10**9, 10**9]}
    target = MODELS.build(f"path:{exported(tmp_path / 'x', architecture=plain)}")
    refused(lambda: instantiate(target, (1, 8, 8), 2), "memory")


@pytest.mark.parametrize("text", ["[" * 100_000, " " * (5 << 20), "\xff", "null", ""])
def test_a_description_that_is_no_description(tmp_path: Path, text: str) -> None:
    folder = exported(tmp_path / "x")
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(lambda: Exported.read(folder))


def test_a_snapshot_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    exported(tmp_path / "outside")
    (tmp_path / "cache" / "refs").mkdir(parents=True)
    (tmp_path / "cache" / "snapshots").mkdir()
    (tmp_path / "cache" / "refs" / "main").write_text("../../outside")
    refused(lambda: Exported.read(tmp_path / "cache"), "names no snapshot")
