"""Blocks are found by tracing, compute what the network computes, and have the right Jacobian."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks._pictures import PictureSpace
from leakscope.attacks.peeling.pieces import products
from leakscope.attacks.peeling.take_apart import take_apart
from leakscope.core import seeds
from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel
from leakscope.models.ir import IRArchitecture
from leakscope.models.preact import PreactResNetArchitecture

SHAPE = (3, 16, 16)


def split(model: nn.Module, cut: str, *, dtype: torch.dtype = torch.float64) -> SplitModel:
    """The network with batch norms that do something, in eval mode."""
    rng = seeds.generator(0, "norms")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.copy_(torch.randn(module.num_features, generator=rng))
            module.running_var.copy_(torch.rand(module.num_features, generator=rng) + 0.5)
            module.weight.data.copy_(torch.rand(module.num_features, generator=rng) + 0.5)
            module.bias.data.copy_(torch.randn(module.num_features, generator=rng))
    whole = SplitModel(model, cut, normalize=Normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    return whole.eval().requires_grad_(False).to(dtype)


def preact(**settings: object) -> nn.Module:
    with seeds.ambient(0, "model"):
        return PreactResNetArchitecture(width=4, **settings).build(SHAPE, 5)  # type: ignore[arg-type]


def ir() -> nn.Module:
    with seeds.ambient(0, "model"):
        return IRArchitecture(depth=18, width=4, dim=8).build(SHAPE, 5)


def zoo(name: str) -> nn.Module:
    ensure_torchvision()
    import torchvision

    with seeds.ambient(0, "model"):
        model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=5)
    return model


def timm_vit() -> nn.Module:
    ensure_torchvision()
    import timm

    with seeds.ambient(0, "model"):
        model: nn.Module = timm.create_model(
            "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, num_heads=2, depth=2, num_classes=5
        )
    return model


CASES = [
    (lambda: preact(), "layer4.1", 8, "shortcut"),
    (lambda: preact(batch_norm=True, activation="prelu"), "layer4.1", 8, "shortcut"),
    (lambda: preact(strided=False, stem="conv7", stem_activation=True, pooling=True), "layer4.1", 8, "shortcut"),
    (ir, "body.7", 8, "shortcut"),
    (lambda: zoo("resnet18"), "layer2", 4, "shortcut and ReLU behind the sum"),
    (lambda: zoo("resnet50"), "layer1.2", 3, "bottleneck"),
    (timm_vit, "blocks.1", 4, "attention and MLP"),
]


@pytest.mark.parametrize(("build", "cut", "count", "what"), CASES, ids=[case[3] + case[1] for case in CASES])
def test_the_chain_is_the_encoder(build, cut: str, count: int, what: str) -> None:  # type: ignore[no-untyped-def]
    network = split(build(), cut)
    chain = take_apart(network, SHAPE)
    x = torch.rand(2, *SHAPE, generator=seeds.generator(0, "x"), dtype=torch.float64)
    assert len(chain.blocks) == count
    assert len({block.name for block in chain.blocks}) == count
    assert all(block.shortcut is not None for block in chain.blocks)
    torch.testing.assert_close(chain(x), network.encode(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("build", "cut", "count", "what"), CASES, ids=[case[3] + case[1] for case in CASES])
def test_jacobian_products_agree_with_autograd(build, cut: str, count: int, what: str) -> None:  # type: ignore[no-untyped-def]
    network = split(build(), cut)
    chain = take_apart(network, SHAPE)
    rng = seeds.generator(0, "x")
    x = torch.rand(2, *SHAPE, generator=rng, dtype=torch.float64).requires_grad_()
    y = network.encode(x)
    u, v = torch.randn(y.shape, generator=rng, dtype=y.dtype), torch.randn(x.shape, generator=rng, dtype=x.dtype)
    (pulled,) = torch.autograd.grad(y, x, u)
    with torch.no_grad():
        _, jacobian = chain.linearise(x.detach())
    torch.testing.assert_close(jacobian.adjoint(u), pulled, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close((jacobian.forward(v) * u).sum(), (v * pulled).sum(), rtol=1e-8, atol=1e-10)


def test_names_are_those_of_the_modules_around_the_blocks() -> None:
    chain = take_apart(split(preact(), "layer2.1"), SHAPE)
    assert [block.name for block in chain.blocks] == ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]


def test_a_plain_network_comes_apart_layer_by_layer() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(100, 5),
    )  # fmt: skip
    network = split(model, "5")
    chain = take_apart(network, SHAPE, plain_layers=True)
    x = torch.rand(2, *SHAPE, generator=seeds.generator(0, "x"), dtype=torch.float64)
    assert [block.outer is not None for block in chain.blocks] == [True, False, True]
    torch.testing.assert_close(chain(x), network.encode(x))


class Overwriting(nn.Module):
    """Its in-place ReLU changes what the shortcut reads."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.stem, self.conv, self.act = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), activation
        self.tail = nn.Sequential(nn.Flatten(), nn.Linear(768, 5))
        self.end = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        scores: Tensor = self.tail(self.end(self.conv(self.act(x)) + x))
        return scores


@pytest.mark.parametrize(
    ("build", "cut", "message"),
    [
        (lambda: Overwriting(nn.ReLU(inplace=True)), "end", "in-place"),
        (lambda: Overwriting(nn.Tanh()), "end", "Tanh"),
        (lambda: preact(), "stem", "no residual block in front of the cut 'stem'"),
        (lambda: zoo("alexnet"), "features.0", "no residual block"),
    ],
    ids=["in-place", "unknown activation", "cut before the first block", "no block"],
)
def test_bad_input_is_one_line_with_a_remedy(build, cut: str, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message) as caught:
        take_apart(split(build(), cut), (3, 64, 64) if cut == "features.0" else SHAPE)
    assert "\n" not in str(caught.value)
    assert "use" in str(caught.value)


def test_smooth_pictures_have_an_adjoint_and_an_inverse() -> None:
    like = torch.zeros((), dtype=torch.float64)
    space = PictureSpace((3, 8, 12), 0.1, 0.3, like)
    rng = seeds.generator(0, "pictures")
    z, g = (
        torch.randn(2, 288, generator=rng, dtype=like.dtype),
        torch.randn(2, 3, 8, 12, generator=rng, dtype=like.dtype),
    )
    torch.testing.assert_close((space.linear(z) * g).sum(), (z * space.adjoint(g)).sum())
    torch.testing.assert_close(space.coordinates(space.pixels(z)), z)
    # Without colour scaling ‖z‖² is 16·(Σ squared neighbour differences + ε‖x‖²).
    space, x = PictureSpace((1, 8, 12), 0.1, 1.0, like), g[:, :1]
    differences = x.diff(dim=2).square().sum() + x.diff(dim=3).square().sum()
    torch.testing.assert_close(space.coordinates(0.5 + x).square().sum(), 16 * (differences + 0.1 * x.square().sum()))


def test_a_step_without_a_gradient_has_a_jacobian_of_zero() -> None:
    x = torch.rand(2, 3)
    y, of = products(lambda t: torch.rand(2, 4), x)
    assert torch.equal(of.forward(x), torch.zeros(2, 4))
    assert torch.equal(of.adjoint(y), torch.zeros(2, 3))
