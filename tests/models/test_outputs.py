"""Networks that return more than a tensor, read more than a picture, or come compiled."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakscope
from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel, cuts, scores_of
from leakscope.models.given import Given
from leakscope.models.resolve import instantiate

Named = namedtuple("Named", ["logits", "hidden"])
SMALL: dict[str, Any] = {
    "attacks": ["ridge"], "victims": 4, "metrics": ["leak"], "splits": {"private": 60, "heldout": 40, "public": 60},
}  # fmt: skip


class _Net(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x.flatten(1)).relu()
        scores = self.last(hidden)
        return {
            "tensor": scores, "mapping": {"hidden": hidden, "logits": scores}, "tuple": (scores, hidden),
            "named": Named(scores, hidden), "strange": {"hidden": hidden},
        }[self.form]  # fmt: skip


@pytest.mark.parametrize("form", ["mapping", "tuple", "named"])
def test_scores_are_found_wherever_they_are(form: str) -> None:
    torch.manual_seed(0)
    plain = _Net("tensor")
    net = _Net(form)
    net.load_state_dict(plain.state_dict())
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(scores_of(net(x)), plain(x))
    assert [cut.name for cut in cuts(net, x)] == [cut.name for cut in cuts(plain, x)] == ["first"]
    assert torch.equal(SplitModel(net, "first")(x), plain(x))
    assert instantiate(Given.of(net), (1, 8, 8), 10) is not None
    leaks = [leakscope.attack(own, "digits", cut="first", **SMALL)[0].result.leak for own in (net, plain)]
    assert leaks[0] == leaks[1]


def test_no_scores_are_one_line() -> None:
    with pytest.raises(UsageError, match="one row of scores"):
        instantiate(Given.of(_Net("strange")), (1, 8, 8), 10)


def test_a_model_output_of_transformers() -> None:
    ensure_torchvision()
    transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=1, num_labels=10,
    )  # fmt: skip
    net = transformers.ViTForImageClassification(config).eval()
    x = torch.rand(2, 1, 8, 8)
    found = [cut.name for cut in cuts(net, x)]
    assert "vit.embeddings" in found
    assert torch.equal(SplitModel(net, "vit.embeddings")(x), net(x).logits)


class _Conditioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64 + 2, 16), nn.Linear(16, 10)

    def forward(self, where: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
        hidden: Tensor = self.first(torch.cat([x.flatten(1), where], 1))
        return self.last(gain * hidden.relu())  # type: ignore[no-any-return]


def test_several_inputs_become_one() -> None:
    net = _Conditioned().eval()
    where = torch.tensor([[0.5, 1.0]])
    one = leakscope.OneInput(net, where, gain=2.0)
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(one(x), net(where.expand(3, 2), x, gain=2.0))
    found = leakscope.attack(one, "digits", cut="network.first", **SMALL)
    assert found[0].target.cut == "network.first"
    with pytest.raises(UsageError, match="one row"):
        leakscope.OneInput(net, torch.zeros(3, 2))
    with pytest.raises(UsageError, match=r"required positional argument.*leakscope\.OneInput"):
        instantiate(Given.of(net), (1, 8, 8), 10)


def test_a_compiled_network_is_that_which_was_compiled() -> None:
    net = _Net("tensor")
    assert Given.of(torch.compile(net)) == Given.of(net)  # type: ignore[arg-type]
    found = leakscope.attack(torch.compile(net), "digits", cut="first", **SMALL)
    assert found[0].result.leak == leakscope.attack(net, "digits", cut="first", **SMALL)[0].result.leak


def test_a_loader_is_data() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
    pairs = torch.utils.data.TensorDataset(x, y)
    settings = {**SMALL, "splits": {"private": 20, "heldout": 10, "public": 10}}
    net = _Net("tensor")
    results = [
        leakscope.attack(net, data, cut="first", **settings)[0]
        for data in ((x, y), torch.utils.data.DataLoader(pairs, batch_size=7, shuffle=True))
    ]
    assert results[0].target.key == results[1].target.key
    assert results[0].result.leak == results[1].result.leak
