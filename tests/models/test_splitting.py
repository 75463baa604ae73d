"""Cutting any network in two: ours, torchvision's, timm's, and awkward ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.defense import Defense
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel, cuts
from leakscope.models.resolve import instantiate, resolve

SMALL = [
    ("mlp", (10, 1, 1), ["relu1", "hidden2"]),
    ("lenet5", (3, 32, 32), ["block1", "block2"]),
    ("convnet", (1, 28, 28), ["features.2", "features.7"]),
    ("vgg11-sgm:width=0.1", (3, 32, 32), ["client", "server.widen"]),
    ("examples/own_model.py:build", (3, 16, 16), ["features.0", "features.3"]),
    ("torchvision:resnet18", (3, 32, 32), ["layer1"]),
    ("torchvision:resnet18", (1, 28, 28), ["conv1"]),
    ("timm:vit_tiny_patch16_224", (3, 32, 32), ["blocks.1"]),
]


def network(spec: str, shape: tuple[int, int, int]) -> nn.Module:
    with seeds.ambient(0, spec):
        return instantiate(resolve(spec), shape, 5).eval()


@pytest.mark.parametrize(("spec", "shape", "wanted"), SMALL, ids=[f"{s}-{x[0]}" for s, x, _ in SMALL])
@torch.no_grad()
def test_every_network_is_cut_by_name(spec: str, shape: tuple[int, int, int], wanted: list[str]) -> None:
    model = network(spec, shape)
    x = torch.rand(3, *shape)
    scores = model(x)
    listed = {cut.name: cut for cut in cuts(model, x)}
    shares = [cut.compute for cut in listed.values()]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    for name in wanted:
        split = SplitModel(model, name).eval()
        whole = split.run(x)
        assert listed[name].shape == tuple(whole.features.shape[1:])
        torch.testing.assert_close(whole.scores, scores)
        assert torch.equal(split.encode(x), whole.features)
        client, server = split.export(x)
        assert torch.equal(client(x), whole.features)
        torch.testing.assert_close(server(client(x)), scores, rtol=1e-4, atol=1e-5)
        assert not {id(p) for p in client.parameters()} & {id(p) for p in server.parameters()}


@pytest.mark.parametrize("spec", ["mlp", "lenet5", "convnet", "vgg11-sgm:width=0.1"])
def test_default_cuts_separate_the_network(spec: str) -> None:
    architecture = resolve(spec)
    model = network(spec, (3, 32, 32))
    listed = [cut.name for cut in cuts(model, torch.rand(2, 3, 32, 32))]
    positions = [listed.index(name) for name in architecture.default_cuts]
    assert positions
    assert positions == sorted(positions)


def test_compute_share_is_the_share_of_multiplications() -> None:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False), nn.Identity())
    by_name = {cut.name: cut.compute for cut in cuts(model, torch.rand(2, 4))}
    assert by_name["0"] == pytest.approx(4 * 6 / (4 * 6 + 6 * 3))


class InPlace(nn.Module):
    """An in-place ReLU behind the cut, which would spoil features that were not kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(256, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.act(self.conv(x)).flatten(1))
        return scores


class Twice(InPlace):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.shared(self.act(self.shared(self.conv(x)))).flatten(1))
        return scores


class Bypassed(InPlace):
    """A second path from the picture, around `conv`, that meets it before `fc`."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Conv2d(1, 4, 1)
        self.joined = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.joined(self.act(self.conv(x)) + self.side(x)).flatten(1))
        return scores


class NoScores(InPlace):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"features": self.conv(x)}


class Recurrent(nn.Module):
    """A layer inside returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 5, batch_first=True)
        self.mixed = nn.Linear(5, 4)
        self.fc = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rows(x[:, 0])
        scores: Tensor = self.fc(self.mixed(states).flatten(1))
        return scores


X = torch.rand(2, 1, 8, 8, generator=seeds.generator(0, "x"))


@torch.no_grad()
def test_in_place_layers_behind_the_cut_do_not_touch_the_features() -> None:
    model = InPlace().eval()
    split = SplitModel(model, "conv").eval()
    passed = split.run(X)
    assert (passed.features < 0).any()
    assert torch.equal(passed.features, model.conv(X))
    assert torch.equal(passed.scores, model(X))
    assert [cut.name for cut in cuts(model, X)] == ["conv", "act"]
    client, server = split.export(X)
    torch.testing.assert_close(server(client(X)), model(X))


@torch.no_grad()
def test_a_layer_called_twice_is_no_cut() -> None:
    model = Twice().eval()
    assert [cut.name for cut in cuts(model, X)] == ["conv", "act"]
    with pytest.raises(UsageError, match="more than once"):
        SplitModel(model, "shared").run(X)
    client, server = SplitModel(model, "act").export(X)  # `shared` runs on both sides
    torch.testing.assert_close(server(client(X)), model(X))
    assert not {id(p) for p in client.parameters()} & {id(p) for p in server.parameters()}


def test_a_bypassed_layer_is_no_cut() -> None:
    model = Bypassed().eval()
    assert [cut.name for cut in cuts(model, X)] == ["joined"]
    with pytest.raises(UsageError, match="also read what comes before"):
        SplitModel(model, "conv").export(X)


def test_what_holds_no_scores_is_refused_in_one_line() -> None:
    for attempt in (lambda: cuts(NoScores(), X), lambda: SplitModel(NoScores(), "conv").run(X)):
        with pytest.raises(UsageError, match="scores") as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert [cut.name for cut in cuts(Recurrent(), X)] == ["mixed"]
    with pytest.raises(UsageError, match="returns tuple"):
        SplitModel(Recurrent(), "rows").run(X)


def test_a_layer_that_does_not_run_and_one_that_is_not_there() -> None:
    model = InPlace()
    model.unused = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="does not run"):
        SplitModel(model, "unused").encode(X)
    with pytest.raises(UsageError, match="did you mean conv"):
        SplitModel(model, "cnov")


class Doubled(Defense):
    """Doubles features when deployed, and leaves them alone in training."""

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return z if training else 2 * z


@torch.no_grad()
def test_export_from_training_mode_deploys_an_independent_copy() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 3))
    split = SplitModel(model, "1", normalize=Normalize((0.5,), (0.5,)), defense=Doubled()).train()
    before = {name: value.clone() for name, value in split.state_dict().items()}
    client, server = split.export(X)
    assert split.training
    assert all(torch.equal(value, before[name]) for name, value in split.state_dict().items())
    deployed = client(X)
    torch.testing.assert_close(deployed, 2 * split.eval().encode(X))
    torch.testing.assert_close(server(deployed), split(X))
    for p in split.parameters():
        p.zero_()
    assert not torch.equal(client(X), torch.zeros_like(deployed))


def test_an_identity_shortcut_is_no_cut() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shortcut, self.branch = nn.Identity(), nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.shortcut(x) + self.branch(x)
            return out

    model = nn.Sequential(nn.Conv2d(1, 3, 3), Block(), nn.Dropout(), nn.Flatten(), nn.Linear(3 * 36, 2))
    found = [cut.name for cut in cuts(model, torch.rand(2, 1, 8, 8))]
    # The branch reads the block's input too, so what is released at the shortcut alone hides nothing.
    assert found == ["0", "1", "2", "3"]
