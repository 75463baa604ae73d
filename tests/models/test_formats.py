"""Files in other forms are loaded, or refused for the true reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from leakscope.core.errors import UsageError
from leakscope.models.resolve import resolve
from leakscope.models.weights import load_weights, read_state


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["net.pt", "net.ts"])
def test_torchscript_is_refused_for_what_it_is(name: str, tmp_path: Path) -> None:
    torch.jit.script(_net()).save(str(tmp_path / name))
    with pytest.raises(UsageError, match=r"TorchScript, whose layers.*safetensors"):
        resolve(str(tmp_path / name))
    with pytest.raises(UsageError, match="TorchScript"):
        load_weights(_net(), tmp_path / name)


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_is_refused_for_what_it_is(tmp_path: Path) -> None:
    program = torch.export.export(_net(), (torch.rand(2, 1, 8, 8),))
    for name in ("net.pt2", "renamed.pt"):
        torch.export.save(program, tmp_path / "net.pt2")
        (tmp_path / "net.pt2").rename(tmp_path / name)
        for attempt in (lambda path: resolve(str(path)), read_state):
            with pytest.raises(UsageError, match=r"torch\.export program.*safetensors"):
                attempt(tmp_path / name)


def test_onnx_is_refused_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\\x08\\x07\\x12\\x07pytorch")
    for attempt in (lambda path: resolve(str(path)), read_state):
        with pytest.raises(UsageError, match="not made of PyTorch layers") as raised:
            attempt(tmp_path / "net.onnx")
        assert "run code" not in str(raised.value)


def test_weights_as_a_model_are_explained(tmp_path: Path) -> None:
    torch.save(_net().state_dict(), tmp_path / "full.pt")
    for name in (str(tmp_path / "full.pt"), "nowhere.safetensors"):
        with pytest.raises(UsageError, match=r"as --weights"):
            resolve(name)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "model._orig_mod.", "module._orig_mod.", "net."])
def test_prefixes_of_wrappers_are_taken_off(prefix: str, tmp_path: Path) -> None:
    net, other = _net(), _net()
    torch.save({"state_dict": {prefix + name: t for name, t in net.state_dict().items()}}, tmp_path / "w.ckpt")
    load_weights(other, tmp_path / "w.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
