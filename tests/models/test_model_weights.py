"""Weights files: good ones load, damaged ones are refused, and none of them runs code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from leakscope.core.errors import UsageError
from leakscope.models.weights import file_digest, load_weights, state_digest


def network(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, outputs))


def refused(path: Path, model: nn.Module | None = None) -> str:
    model = network() if model is None else model
    before = state_digest(model)
    with pytest.raises(UsageError) as caught:
        load_weights(model, path)
    assert state_digest(model) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_safetensors_and_pt_round_trip(tmp_path: Path) -> None:
    source = network()
    source(torch.rand(5, 1, 8, 8))  # moves the running moments away from their defaults
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    torch.save(source.state_dict(), tmp_path / "b.pt")
    torch.save(source.state_dict(), tmp_path / "c.pth", _use_new_zipfile_serialization=False)
    for name in ("a.safetensors", "b.pt", "c.pth"):
        model = network()
        assert state_digest(model) != state_digest(source)
        load_weights(model, tmp_path / name)
        assert state_digest(model) == state_digest(source)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_prefixes_and_wrappers_of_training_scripts(tmp_path: Path, prefix: str, wrapper: str | None) -> None:
    source = network()
    content: dict[str, Any] = {prefix + name: value for name, value in source.state_dict().items()}
    if wrapper is not None:
        content = {"epoch": 7, wrapper: content}
    torch.save(content, tmp_path / "w.pt")
    model = network()
    load_weights(model, tmp_path / "w.pt")
    assert state_digest(model) == state_digest(source)


def test_a_network_whose_own_names_begin_so_keeps_them(tmp_path: Path) -> None:
    source = nn.Sequential()
    source.add_module("model", network())
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    load_weights(source, tmp_path / "w.safetensors")


def test_checkpoints_without_batch_counters_load(tmp_path: Path) -> None:
    state = network().state_dict()
    del state["1.num_batches_tracked"]
    save_file(state, tmp_path / "old.safetensors")
    load_weights(network(), tmp_path / "old.safetensors")


def test_another_shape_is_named_and_counted(tmp_path: Path) -> None:
    save_file(network(5).state_dict(), tmp_path / "w.safetensors")
    said = refused(tmp_path / "w.safetensors")
    assert "2 of another shape (first 3.weight: 5×144 in the file, 3×144 in the network)" in said


def test_other_names_are_named_and_counted(tmp_path: Path) -> None:
    state = network().state_dict()
    state["9.weight"] = state.pop("3.weight")
    save_file(state, tmp_path / "w.safetensors")
    said = refused(tmp_path / "w.safetensors")
    assert "1 missing (first 3.weight)" in said
    assert "1 unexpected (first 9.weight)" in said


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_truncated_files(tmp_path: Path, name: str, share: float) -> None:
    path = tmp_path / name
    save_file(network().state_dict(), path) if path.suffix == ".safetensors" else torch.save(
        network().state_dict(), path
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert str(path) in refused(path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_garbage_and_absence(tmp_path: Path, name: str) -> None:
    assert "check the path" in refused(tmp_path / name)
    (tmp_path / name).write_bytes(b"this is not a weights file at all" * 10)
    assert str(tmp_path / name) in refused(tmp_path / name)
    assert "check the path" in refused(tmp_path)


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.pkl"])
@pytest.mark.parametrize("saved", ["torch", "pickle"])
def test_a_pickle_that_would_run_code_is_refused_unexecuted(tmp_path: Path, name: str, saved: str) -> None:
    mark, path = tmp_path / "executed", tmp_path / name
    content = {**network().state_dict(), "x": Trap(mark)}
    torch.save(content, path) if saved == "torch" else path.write_bytes(pickle.dumps(content))
    said = refused(path)
    assert "would run code" in said
    assert "safetensors" in said
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()  # the trap works; it was not sprung


def test_whole_pickled_networks_and_other_contents_are_refused(tmp_path: Path) -> None:
    torch.save(network(), tmp_path / "whole.pt")
    assert "safetensors" in refused(tmp_path / "whole.pt")
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    assert "state_dict" in refused(tmp_path / "list.pt")


def test_digests_tell_content_apart(tmp_path: Path) -> None:
    model = network().to(torch.bfloat16)
    first = state_digest(model)
    assert first == state_digest(model)
    with torch.no_grad():
        model.get_parameter("0.bias")[0] += 1
    assert state_digest(model) != first
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"1")
    assert file_digest(tmp_path / "a") == file_digest(tmp_path / "b")
    with pytest.raises(UsageError):
        file_digest(tmp_path / "absent")
