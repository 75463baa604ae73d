"""What the architectures build: counts from the literature, shapes, seeds, and one-line refusals."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from leakscope.core import seeds
from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.spec import describe, digest
from leakscope.models.architecture import MODELS
from leakscope.models.mlp import MLP
from leakscope.models.resolve import instantiate, resolve
from leakscope.models.torchvision_zoo import Torchvision
from leakscope.models.vgg11_sgm import VGG11SGM
from leakscope.models.weights import state_digest


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def built(spec: Any, shape: tuple[int, int, int], classes: int = 10, seed: int = 0) -> nn.Module:
    with seeds.ambient(seed, "test"):
        return instantiate(resolve(spec), shape, classes)


SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)]
OWN = {"mlp": SHAPES, "lenet5": SHAPES[1:], "convnet": SHAPES, "vgg11-sgm:width=0.1": SHAPES}


@pytest.mark.parametrize(("spec", "shape"), [(spec, shape) for spec, shapes in OWN.items() for shape in shapes])
def test_scores_have_one_column_a_class_and_weights_follow_the_seed(spec: str, shape: tuple[int, int, int]) -> None:
    model = built(spec, shape, classes=7)
    assert model.training
    assert model(torch.rand(4, *shape)).shape == (4, 7)
    first = state_digest(built(spec, shape, classes=7))
    assert state_digest(built(spec, shape, classes=7)) == first
    assert state_digest(built(spec, shape, classes=7, seed=1)) != first


def test_all_required_models_are_registered() -> None:
    assert {"mlp", "lenet5", "convnet", "vgg11-sgm", "torchvision", "timm", "file"} <= set(MODELS)


def test_specs_round_trip_through_plain_data() -> None:
    for spec in ("convnet", "vgg11-sgm:width=0.25,relu=true", "torchvision:resnet18", "examples/own_model.py:build"):
        architecture = resolve(spec)
        plain = describe(architecture)
        assert resolve(plain) == architecture
        assert digest(describe(resolve(plain))) == digest(plain)


def test_vgg11_sgm_has_the_published_parameters() -> None:
    model = built("vgg11-sgm", (3, 32, 32))
    client = model.get_submodule("client")
    assert parameters(client) == 85_256
    server = parameters(model) - 85_256
    # 8→128 and the six convolutions behind it with their norms, then 512→512→512→10, all with biases.
    convolutions = [(8, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
    norms = 2 * (256 + 256 + 4 * 512)
    expected = sum(9 * i * o + o for i, o in convolutions) + norms + 2 * (512 * 512 + 512) + 512 * 10 + 10
    assert server == expected == 9_689_738  # "9.69 M"
    for layer in client.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is not None
            assert not layer.bias.any()
            bound = sqrt(6 / (9 * (layer.in_channels + layer.out_channels)))
            assert bound * 0.98 < layer.weight.abs().max() <= bound
    z = client.eval()(torch.rand(2, 3, 32, 32))
    assert z.shape == (2, 8, 8, 8)
    assert ((z > 0) & (z < 1)).all()


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"stride": 1}, (8, 8, 8)),
        ({"stride": 2}, (8, 4, 4)),
        ({"stride": 4, "relu": True}, (8, 2, 2)),
        ({"kernel": 5, "channels": 4}, (4, 8, 8)),
        ({"cut_layer": 2}, (8, 16, 16)),
        ({"sigmoid": False}, (8, 8, 8)),
    ],
)
def test_vgg11_sgm_reads_the_bottleneck_grammar(fields: dict[str, Any], sent: tuple[int, ...]) -> None:
    model = built(VGG11SGM(width=0.1, **fields), (3, 32, 32)).eval()
    x = torch.rand(2, 3, 32, 32)
    z = model.get_submodule("client")(x)
    assert tuple(z.shape[1:]) == sent
    wide = model.get_submodule("server.widen")(z)
    assert wide.shape[2:] == torch.Size([s * fields.get("stride", 1) for s in sent[1:]])
    assert (wide >= 0).all() == fields.get("relu", False)
    assert model(x).shape == (2, 10)
    assert isinstance(model.get_submodule("client.end"), nn.Sigmoid) == fields.get("sigmoid", True)


def test_lenet5_is_lenet5() -> None:
    # LeCun's counts for full connections: 156 + 2416 + 48120 + 10164 + 850.
    assert parameters(built("lenet5", (1, 32, 32))) == parameters(built("lenet5", (1, 28, 28))) == 61_706


def test_vgg16_has_one_linear_layer_and_the_convolutions_of_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_torchvision()
    from torchvision.models import VGG16_BN_Weights, vgg16_bn

    with torch.device("meta"):
        model, theirs = resolve("vgg16").build((3, 64, 64), 1000), vgg16_bn()
    # 3×3 convolutions with biases and norms, then the norm of 2,048 features and the linear layer over them.
    wide = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = sum(9 * i * o + 3 * o for i, o in pairwise(wide))
    assert parameters(model) == convolutions + 2 * 2048 + 2048 * 1000 + 1000 == 16_776_232  # "16.8 M"
    shapes = {name: p.shape for name, p in model.state_dict().items() if name.startswith("features.")}
    assert shapes == {n: p.shape for n, p in theirs.state_dict().items() if n.startswith("features.")}
    assert sum(isinstance(layer, nn.Linear) for layer in model.modules()) == 1

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(UsageError, match="no pretrained weights"):
        built("vgg16:pretrained=true", (3, 32, 32))
    weights = {n: torch.full_like(p, 0.01, device="cpu") for n, p in theirs.state_dict().items() if "features" in n}
    (tmp_path / "checkpoints").mkdir()
    torch.save(weights, tmp_path / "checkpoints" / VGG16_BN_Weights.DEFAULT.url.rpartition("/")[2])
    read = built("vgg16:pretrained=true", (1, 32, 32), classes=4)
    for name, value in read.state_dict().items():
        assert name.startswith(("norm.", "fc.")) or torch.equal(value, weights[name]), name
    assert read.get_submodule("fc").get_parameter("weight").shape == (4, 512)


def test_mlp_expresses_mixcon_and_its_initialisation() -> None:
    mixcon = MLP(widths=(500, 2, 100), drift=4.0)
    model = built(mixcon, (10, 1, 1), classes=2)
    sizes = [(layer.in_features, layer.out_features) for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert sizes == [(10, 500), (500, 2), (2, 100), (100, 2)]
    first = model.get_submodule("hidden1").get_parameter("weight")
    assert first.std().item() == pytest.approx(1, abs=5 / sqrt(2 * first.numel()))
    means = []
    for seed in range(100):
        with seeds.ambient(seed, "drift"):
            layer = mixcon.build((10, 1, 1), 2).get_submodule("hidden1")
        means.append(layer.get_parameter("weight").mean())
        assert (means[-1] - layer.get_parameter("bias").mean()).abs() < 6 / sqrt(500)  # one u for both
    # The variance of 100 normal values is known to √(2/99) of itself; 1/5000 comes from averaging weights.
    assert torch.stack(means).var().item() == pytest.approx(4.0, rel=4 * sqrt(2 / 99))


def test_convnet_learns_digits_in_seconds() -> None:
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    model = built("convnet", (1, 8, 8))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for batch in torch.randperm(1200, generator=seeds.generator(epoch, "batches")).split(50):
            optimiser.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        accuracy = (model.eval()(x[1200:]).argmax(1) == y[1200:]).float().mean()
    assert accuracy > 0.9


@torch.no_grad()
def test_torchvision_reads_grey_as_repeated_grey_and_keeps_its_names() -> None:
    ensure_torchvision()
    from torchvision.models import resnet18

    grey = built("torchvision:resnet18", (1, 32, 32)).eval()
    theirs = resnet18(num_classes=10).eval()
    theirs.load_state_dict(grey.state_dict())  # strict: same names, same shapes
    x = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(grey(x), theirs(x.repeat(1, 3, 1, 1)))
    assert {name for name, _ in theirs.named_modules()} == {name for name, _ in grey.named_modules()}


def test_torchvision_vit_is_built_for_the_picture_size() -> None:
    with seeds.ambient(0, "vit"):
        model = Torchvision("vit_b_32").build((1, 64, 64), 10)
    assert model.get_parameter("encoder.pos_embedding").shape[1] == 1 + 4
    with pytest.raises(UsageError, match="resize"):
        built("torchvision:vit_b_32", (3, 28, 28))


@torch.no_grad()
def test_torchvision_pretrained_reads_the_disk_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_torchvision()
    from torchvision.models import ShuffleNet_V2_X0_5_Weights, shufflenet_v2_x0_5

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    spec = "torchvision:shufflenet_v2_x0_5,pretrained=true"
    with pytest.raises(UsageError, match="no pretrained weights") as caught:
        built(spec, (3, 32, 32))
    assert "\n" not in str(caught.value)
    weights = shufflenet_v2_x0_5().state_dict()
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "checkpoints" / ShuffleNet_V2_X0_5_Weights.DEFAULT.url.rpartition("/")[2]
    torch.save(weights, path)
    model = built(spec, (1, 32, 32), classes=4)
    for name, value in model.state_dict().items():
        assert name.startswith("fc.") or torch.equal(value, weights[name]), name
    normalize = resolve(spec).normalization()
    assert normalize is not None
    assert normalize(torch.full((1, 1, 2, 2), 0.485)).shape == (1, 3, 2, 2)
    assert resolve("torchvision:resnet18").normalization() is None
    del weights["conv1.0.weight"]
    torch.save(weights, path)
    with pytest.raises(UsageError, match="conv1"):
        built(spec, (3, 32, 32))


def test_timm_follows_channels_and_size() -> None:
    vit = built("timm:vit_tiny_patch16_224", (1, 32, 48), classes=3)
    assert vit.get_parameter("pos_embed").shape[1] == 1 + 2 * 3
    assert vit.get_parameter("patch_embed.proj.weight").shape[1] == 1
    assert built("timm:resnet10t", (3, 32, 32), classes=3)(torch.rand(2, 3, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("spec", "shape", "says"),
    [
        ("convent", (1, 28, 28), "did you mean convnet"),
        ("torchvision:resnet81", (3, 32, 32), "did you mean resnet18"),
        ("timm:vit_tinny_patch16_224", (3, 32, 32), "vit_tiny_patch16_224"),
        ("lenet5", (1, 8, 8), "take convnet"),
        ("vgg16", (3, 28, 28), "take convnet"),
        ("torchvision:alexnet", (3, 28, 28), "resize"),
        ("torchvision:resnet18", (4, 32, 32), "not 4 channels"),
        ({"kind": "mlp", "widths": []}, (1, 8, 8), "widths"),
        ({"kind": "mlp", "drift": -1}, (1, 8, 8), "variance"),
        ({"kind": "convnet", "widths": [0]}, (1, 8, 8), "widths"),
        ("vgg11-sgm:stride=3", (3, 32, 32), "power of two"),
        ("vgg11-sgm:kernel=4", (3, 32, 32), "odd"),
        ("vgg11-sgm:width=0", (3, 32, 32), "width"),
        ("vgg11-sgm:cut_layer=13", (3, 32, 32), "cut_layer"),
        ("vgg11-sgm:channels=0", (3, 32, 32), "channels"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(spec: Any, shape: tuple[int, int, int], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        built(spec, shape)
    assert "\n" not in str(caught.value)
