"""Networks that are odd, broken or hostile: an audit, or one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.cli import app, run
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.own_code import class_from
from leakscope.models.resolve import instantiate, resolve
from leakscope.store import Store


class Cut(nn.Module):
    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, z: Tensor) -> Any:
        return self.change(z)


class Net(nn.Module):
    """`back` makes of what the cut gives what the last layer reads."""

    def __init__(self, change: Callable[[Tensor], Any], back: Callable[[Any, int], Tensor]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.cut = Cut(change)
        self.back = back
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.back(self.cut(self.first(x)), len(x)))


def split(change: Callable[[Tensor], Any], back: Callable[[Any, int], Tensor] = lambda z, n: z.float()) -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(Net(change, back), "cut").eval()


PICTURES = torch.rand(4, 1, 8, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_precisions_are_attacked_as_float32_and_go_on_as_they_were(dtype: torch.dtype) -> None:
    seen: list[torch.dtype] = []

    def back(z: Tensor, count: int) -> Tensor:
        seen.append(z.dtype)
        return z.float()

    network = split(lambda z: z.to(dtype), back)
    with torch.no_grad():
        assert network.release(PICTURES).dtype == torch.float32
        scores = network(PICTURES)
        assert torch.equal(scores, network.model(PICTURES))
        assert torch.equal(network.decide(network.release(PICTURES), PICTURES), scores)
    assert set(seen) == {dtype}


def widths() -> Callable[[Tensor], Tensor]:
    """Features of another width in every call."""
    calls = iter(range(1, 9))
    return lambda z: z[:, : next(calls)]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda z: torch.complex(z, z), "complex64"),
        (lambda z: z.to_sparse(), "sparse"),
        (lambda z: (100 * z).long(), "int64"),
        (lambda z: z > 0, "bool"),
        (lambda z: z[:, :0], "4×0 for 4 pictures"),
        (lambda z: z.sum(1), "gives 4 for 4 pictures"),
        (lambda z: z.sum(), "one number for 4 pictures"),
        (lambda z: z[:1], "1×8 for 4 pictures"),
        (lambda z: torch.cat([z, z]), "8×8 for 4 pictures"),
        (lambda z: [z], "returns list"),
        (lambda z: None, "returns NoneType"),
        (widths(), "and gave"),
    ],
)
def test_features_that_cannot_be_released_picture_by_picture(change: Callable[[Tensor], Any], word: str) -> None:
    network = split(change, lambda z, count: torch.zeros(count, 8))

    def twice() -> None:
        with torch.no_grad():
            for _ in range(2):
                network.encode(PICTURES)

    with pytest.raises(UsageError, match=word) as caught:
        twice()
    assert "cut elsewhere" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("back", [lambda z, n: z[:1], lambda z, n: z[0]])
def test_scores_of_other_shapes(back: Callable[[Any, int], Tensor]) -> None:
    with torch.no_grad(), pytest.raises(UsageError, match="one row for each image"):
        split(lambda z: z, back)(PICTURES)


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        ("raise ValueError('two\\nlines')", 3, "raised ValueError: two lines"),
        ("raise BaseException('x')", 3, "raised BaseException"),
        ("raise SystemExit(0)", 3, "SystemExit(0)"),
        ("raise MemoryError", 3, "not enough memory"),
        ("raise RuntimeError('CUDA out of memory')", 3, "not enough memory"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("return 1 / 0", 3, "ZeroDivisionError"),
        ("raise type('Mute', (Exception,), {'__str__': lambda self: 5})", 3, "raised Mute: no reason given"),
    ],
)
def test_what_code_of_a_user_raises_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, code: int, word: str
) -> None:
    path = tmp_path / "net.py"
    path.write_text(f"class Net:\n    def run(self):\n        {body}\n")
    own = class_from(f"{path}:Net")

    def command(args: Any, standalone_mode: bool) -> None:
        own().run()

    assert run(command, []) == code
    told = capsys.readouterr().err
    assert word in told
    assert told.count("\n") == 1
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("body", "word"),
    [("net.add_module('me', net)", "recursion"), ("net.train = lambda *given: 1 / 0", "division by zero"),
     ("net.state_dict = lambda *given: 1 / 0", "division by zero"), ("net.forward = mute", "Mute"),
     ("net = torch.jit.script(net)", "TorchScript"),
     ("net = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})", "quantised")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_network_that_cannot_be_listened_to_or_kept(tmp_path: Path, body: str, word: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Mute(Exception):\n    def __str__(self):\n        return 5\n\n"
        "def mute(x):\n    raise Mute\n\n"
        "def build():\n    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        f"    {body}\n    return net\n"
    )
    with pytest.raises(UsageError, match=word):
        instantiate(resolve(f"{path}:build"), (1, 8, 8), 3)


@pytest.mark.parametrize(
    ("body", "codes"),
    [("z - z.mean(0, keepdim=True)", {0, 4}), ("z + torch.rand_like(z)", {0, 4}), ("z * 1e25", {0, 2, 3, 4})],
)
def test_an_audit_of_an_odd_network_ends_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, body: str, codes: set[int]
) -> None:
    """One that mixes the batch, one that answers otherwise in every call, one whose features leave all range."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        f"class Odd(nn.Module):\n    def forward(self, z):\n        return {body}\n\n"
        "def build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Odd(), nn.Linear(8, 10))\n"
    )
    given = "audit --model net.py:build --data digits --cut 2 --epochs 0 --attack ridge --victims 8 --quiet"
    sizes = "--set splits={private: 40, heldout: 40, public: 60}"
    assert run(app, [*given.split(), *sizes.split(" ", 1), "--store", "s", "--out", "o"]) in codes
    assert "Traceback" not in capsys.readouterr().err


def test_layers_that_share_their_weights_are_kept(tmp_path: Path) -> None:
    """safetensors refuses them."""
    shared = nn.Linear(3, 3)
    network = nn.Sequential(shared, nn.ReLU(), shared)
    entry = Store(tmp_path).put("trained", "ab" * 12, {}, network.state_dict())
    kept = entry.tensors()
    assert kept.keys() == network.state_dict().keys()
    assert all(torch.equal(kept[name], value) for name, value in network.state_dict().items())


def test_what_we_raise_ourselves_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def command(args: Any, standalone_mode: bool) -> None:
        raise ValueError("ours")

    assert run(command, []) == 3
    assert "Traceback" in capsys.readouterr().err
