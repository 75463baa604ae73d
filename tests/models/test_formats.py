"""Files in other forms are loaded, or refused for the true reason."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
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


def _program(tmp_path: Path, net: nn.Module, **settings: Any) -> Path:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net.eval(), (torch.rand(2, 1, 8, 8),), **settings), path)
    return path


ANY = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
SMALL: dict[str, Any] = {
    "attacks": ["ridge"], "victims": 4, "metrics": ["leak"], "splits": {"private": 60, "heldout": 40, "public": 200},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_is_cut_by_node(tmp_path: Path) -> None:
    """Features at its node `relu` are those behind the layer 2 of the network that was exported, and leak as much."""
    torch.manual_seed(0)
    net = _net()
    path = _program(tmp_path, net, **ANY)
    model = {"kind": "pt2", "path": str(path), "trust_code": True}
    found = leakscope.attack(model, "digits", cut="relu", **SMALL)[0]
    same = leakscope.attack(net, "digits", cut="2", **SMALL)[0]
    assert found.result.leak == pytest.approx(same.result.leak, abs=1e-4)
    assert found.target.accuracy == same.target.accuracy
    assert found.target.model.plain == "net.pt2"
    built = resolve(model).build((1, 8, 8), 10)
    x = torch.rand(5, 1, 8, 8)
    assert torch.allclose(SplitModel(copy.deepcopy(built), "relu").encode(x), net[:3](x), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_is_read_only_when_trusted(tmp_path: Path) -> None:
    path = _program(tmp_path, _net(), **ANY)
    renamed = path.rename(tmp_path / "renamed.pt")
    with pytest.raises(UsageError, match=r"with pickle, which can run code.*trust_code=true"):
        resolve(str(renamed))
    with pytest.raises(UsageError, match=r"torch\.export program, not weights"):
        read_state(renamed)
    (tmp_path / "broken.pt2").write_bytes(renamed.read_bytes()[:500])
    with pytest.raises(UsageError, match="cannot be read"):
        resolve(f"pt2:{tmp_path / 'broken.pt2'},trust_code=true").build((1, 8, 8), 10)


@pytest.mark.filterwarnings("ignore")
def test_a_program_for_one_size_of_batch_is_refused_with_the_remedy(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.last(x.reshape(x.shape[0], 64))
            return scores

    path = _program(tmp_path, Fixed())
    with pytest.raises(UsageError, match=r"cannot read 3 pictures.*dynamic_shapes"):
        resolve(f"pt2:{path},trust_code=true").build((1, 8, 8), 10)


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_network_leaks_as_the_network_it_came_from(tmp_path: Path) -> None:
    ensure_torchvision()
    onnx = pytest.importorskip("onnx", reason="pip install 'leakscope[onnx]'")
    pytest.importorskip("onnx2torch", reason="pip install 'leakscope[onnx]'")
    torch.manual_seed(0)
    net = _net().eval()
    first, last = net[1], net[3]
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    tensors: dict[str, Any] = {"w1": first.weight, "b1": first.bias, "w2": last.weight, "b2": last.bias}
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["flat"]),
            helper.make_node("Gemm", ["flat", "w1", "b1"], ["hidden"], transB=1),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "w2", "b2"], ["scores"], transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(tensor.detach().numpy(), name) for name, tensor in tensors.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), str(tmp_path / "net.onnx"))
    network = resolve(str(tmp_path / "net.onnx")).build((1, 8, 8), 10)
    x = torch.rand(3, 1, 8, 8)
    assert torch.allclose(network(x), net(x), atol=1e-5)
    relu = next(name for name, layer in network.named_modules() if isinstance(layer, nn.ReLU))
    found = leakscope.attack(str(tmp_path / "net.onnx"), "digits", cut=relu, **SMALL)[0]
    same = leakscope.attack(net, "digits", cut="2", **SMALL)[0]
    assert found.result.leak == pytest.approx(same.result.leak, abs=1e-4)


def test_what_is_no_onnx_is_one_line(tmp_path: Path) -> None:
    ensure_torchvision()
    pytest.importorskip("onnx2torch", reason="pip install 'leakscope[onnx]'")
    (tmp_path / "net.onnx").write_bytes(b"\\x08\\x07 nothing")
    with pytest.raises(UsageError, match="cannot be converted"):
        resolve(str(tmp_path / "net.onnx")).build((1, 8, 8), 10)
    with pytest.raises(UsageError, match="not weights alone"):
        read_state(tmp_path / "net.onnx")


def test_onnx_without_its_converter_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.onnx").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(UsageError, match=r"leakscope\[onnx\]"):
        resolve(str(tmp_path / "net.onnx")).build((1, 8, 8), 10)


def test_weights_as_a_model_are_explained(tmp_path: Path) -> None:
    torch.save(_net().state_dict(), tmp_path / "full.pt")
    for name in (str(tmp_path / "full.pt"), "nowhere.safetensors"):
        with pytest.raises(UsageError, match=r"as --weights"):
            resolve(name)


def _lightning(net: nn.Module, path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")

    class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

    trainer = pl.Trainer(logger=False, barebones=True, accelerator="cpu")
    trainer.strategy.connect(Net())
    trainer.save_checkpoint(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrapper", ["compile", "parallel", "lightning"])
def test_checkpoints_of_real_wrappers_load(wrapper: str, tmp_path: Path) -> None:
    net, other, path = _net(), _net(), tmp_path / "w.ckpt"
    if wrapper == "lightning":
        _lightning(net, path)
    else:
        wrapped: Any = torch.compile(net) if wrapper == "compile" else nn.DataParallel(net)
        torch.save(wrapped.state_dict(), path)
    load_weights(other, path)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "model._orig_mod.", "module._orig_mod.", "net."])
def test_prefixes_of_wrappers_are_taken_off(prefix: str, tmp_path: Path) -> None:
    net, other = _net(), _net()
    torch.save({"state_dict": {prefix + name: t for name, t in net.state_dict().items()}}, tmp_path / "w.ckpt")
    load_weights(other, tmp_path / "w.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
