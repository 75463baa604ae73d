"""Generators from files: the whole networks against slow references, and files that are not what they say."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.signal import firwin, upfirdn
from torch import Tensor
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.errors import UsageError
from leakscope.core.prior import PRIORS, Generator
from leakscope.core.seeds import generator
from leakscope.core.spec import label
from leakscope.priors._mapping import Mapping
from leakscope.priors._stylegan2 import Synthesis2
from leakscope.priors._stylegan3 import Signal, Synthesis3, Waves, signals
from leakscope.testing.synthetic import CPU, image_set


def _stylegan2(channels: int = 3) -> dict[str, Tensor]:
    """A random network of 16 pixels with every tensor away from its start."""
    with seeds.ambient(0, "stylegan2"):
        mapping, synthesis = Mapping(6, 5, 8), Synthesis2({4: 4, 8: 3, 16: 2}, channels, 5)
        state = {f"mapping.{k}": v for k, v in mapping.state_dict().items()}
        state |= {f"synthesis.{k}": v for k, v in synthesis.state_dict().items()}
        return {k: v if "filter" in k else (v + 0.1 * torch.randn_like(v)).contiguous() for k, v in state.items()}


def _stylegan3(size: int = 16, layers: int = 6, kernel: int = 3) -> dict[str, Tensor]:
    grid = signals(layers, size)
    with seeds.ambient(0, "stylegan3"):
        tensors: dict[str, Tensor] = {}
        for number, signal in enumerate(grid):
            last, before = number == layers, grid[max(number - 1, 0)]
            prefix = f"synthesis.L{number}_{signal.size}_{3 if last else 4}."
            tensors[prefix + "weight"] = torch.randn(3 if last else 4, 4, *(2 * [1 if last else kernel]))
            tensors[prefix + "bias"] = 0.1 * torch.randn(3 if last else 4)
            tensors[prefix + "magnitude_ema"] = torch.tensor(1.7)
            tensors[prefix + "affine.weight"] = torch.randn(4, 5)
            tensors[prefix + "affine.bias"] = torch.ones(4)
            if not last:
                fine = 2 * max(before.rate, signal.rate)
                for name, at in (("up_filter", before), ("down_filter", signal)):
                    row = firwin(6 * (fine // at.rate), cutoff=at.cutoff, width=at.rate / 2, fs=fine)
                    tensors[prefix + name] = torch.from_numpy(row).float()
        waves = {k: v + 0.1 * torch.randn_like(v) for k, v in Waves(4, 5, grid[0]).state_dict().items()}
        waves["affine.bias"] = torch.tensor([1.0, 0.2, 0.1, -0.1])
        tensors |= {f"synthesis.input.{k}": v for k, v in waves.items()}
        tensors |= {f"mapping.{k}": v for k, v in Mapping(6, 5, 2).state_dict().items()}
        return tensors


def _loaded(kind: str, tensors: dict[str, Tensor], path: Path, settings: str = "") -> Generator:
    save_file(tensors, path)
    prior = PRIORS.build(f"{kind}:file={path}{settings}")
    size, channels = (16, 3) if "resize" not in settings else (8, 1)
    public = image_set(4, "public", (channels, size, size))
    return prior.generator(prior.fit(public, generator(0, "fit"), device=CPU), CPU)


def _affine(tensors: dict[str, Tensor], name: str, w: Tensor) -> Tensor:
    weight = tensors[name + ".affine.weight"]
    return w @ weight.T / math.sqrt(weight.shape[1]) + tensors[name + ".affine.bias"]


def _own(weight: Tensor, style: Tensor, unit: bool = True) -> Tensor:
    own = weight * style.view(1, -1, 1, 1)
    return own / own.flatten(1).norm(dim=1).view(-1, 1, 1, 1) if unit else own


def _doubled(x: Tensor) -> Tensor:
    """Zeros between pixels and the filter (1, 3, 3, 1)/4 along both axes, by SciPy."""

    def along(row: np.ndarray) -> np.ndarray:
        return np.asarray(upfirdn(np.array([1.0, 3.0, 3.0, 1.0]) / 4, row, up=2)[1 : 1 + 2 * len(row)])

    return torch.from_numpy(np.apply_along_axis(along, 3, np.apply_along_axis(along, 2, x.double().numpy()))).float()


def test_stylegan2_is_the_published_network(tmp_path: Path) -> None:
    tensors = _stylegan2()
    made = _loaded("stylegan2", tensors, tmp_path / "g.safetensors")
    assert (made.latent, made.style, made.layers, made.shape) == (6, 5, 6, (3, 16, 16))
    z = made.sample(1, generator(0, "z"))

    w = z / z.square().mean().sqrt()
    for number in range(8):
        weight, bias = tensors[f"mapping.fc{number}.weight"], tensors[f"mapping.fc{number}.bias"]
        w = math.sqrt(2) * F.leaky_relu(w @ weight.T * 0.01 / math.sqrt(weight.shape[1]) + 0.01 * bias, 0.2)
    torch.testing.assert_close(made.to_style(z), w, atol=1e-5, rtol=1e-4)

    # One style for each layer: a layer that read its neighbour's would show.
    styles = w[:, None] + torch.randn(1, 6, 5, generator=generator(0, "styles"))
    x = tensors["synthesis.b4.const"][None]
    image = torch.zeros(1, 3, 2, 2)
    used = 0
    for size in (4, 8, 16):
        for layer in ("conv0", "conv1"):
            name = f"synthesis.b{size}.{layer}"
            if size == 4 and layer == "conv0":
                continue
            own = _own(tensors[name + ".weight"], _affine(tensors, name, styles[:, used])[0])
            if layer == "conv0":  # filter first, then a true convolution: the other order than ours
                zeros = F.pad(torch.zeros(1, x.shape[1], size, size), (4, 4, 4, 4))
                zeros[:, :, 4 : 4 + size : 2, 4 : 4 + size : 2] = x
                taps = torch.outer(torch.tensor([1.0, 3, 3, 1]), torch.tensor([1.0, 3, 3, 1])) / 16
                smooth = F.conv2d(zeros, taps.expand(x.shape[1], 1, 4, 4), groups=x.shape[1])
                x = F.conv2d(smooth, own.flip((2, 3)))[:, :, 2 - 1 : 2 - 1 + size + 2, 2 - 1 : 2 - 1 + size + 2]
                x = x[:, :, :size, :size]
            else:
                x = F.conv2d(x, own, padding=1)
            x = x + tensors[name + ".noise_const"] * tensors[name + ".noise_strength"]
            x = math.sqrt(2) * F.leaky_relu(x + tensors[name + ".bias"].view(-1, 1, 1), 0.2)
            used += 1
        name = f"synthesis.b{size}.torgb"
        style = _affine(tensors, name, styles[:, used])[0] / math.sqrt(x.shape[1])
        colours = F.conv2d(x, _own(tensors[name + ".weight"], style, unit=False))
        image = (_doubled(image) if size > 4 else 0) + colours + tensors[name + ".bias"].view(-1, 1, 1)
    torch.testing.assert_close(made.from_style(styles), (image / 2 + 0.5).clamp(0, 1), atol=1e-4, rtol=1e-3)


def test_stylegan3_sizes_are_those_of_the_published_1024_pixel_network() -> None:
    sizes = [36, 36, 52, 52, 84, 148, 148, 276, 276, 532, 1044, 1044, 1044, 1024, 1024]
    assert [signal.size for signal in signals(14, 1024)] == sizes


def test_stylegan3_waves_against_the_published_formula() -> None:
    with seeds.ambient(0, "waves"):
        waves = Waves(6, 5, Signal(16, 2.0, 12))
        waves.affine.bias.data = torch.tensor([1.0, 0.5, 0.3, -0.2])
        waves.transform.add_(0.1 * torch.randn(3, 3)).index_put_((torch.tensor([2]),), torch.tensor([0.0, 0.0, 1.0]))
        w = torch.randn(1, 5)
    t = waves.affine(w)[0]
    c, s, right, down = (t / t[:2].norm()).tolist()
    turn = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    shift = torch.tensor([[1, 0, -right], [0, 1, -down], [0, 0, 1.0]])
    whole = turn @ shift @ waves.transform
    freqs = waves.freqs @ whole[:2, :2]
    phases = waves.phases + waves.freqs @ whole[:2, 2]
    strength = (1 - (freqs.norm(dim=1) - 2) / (8 - 2)).clamp(0, 1)
    theta = torch.eye(2, 3) * 0.5 * 12 / 16
    grid = F.affine_grid(theta[None], [1, 1, 12, 12], align_corners=False)[0]  # 12×12×(x, y)
    slow = torch.sin(2 * math.pi * (grid @ freqs.T + phases)) * strength @ (waves.weight / math.sqrt(6)).T
    torch.testing.assert_close(waves(w)[0], slow.permute(2, 0, 1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel", [3, 1], ids=["T", "R"])
def test_stylegan3_layers_against_scipy(kernel: int, tmp_path: Path) -> None:
    tensors = _stylegan3(kernel=kernel)
    made = _loaded("stylegan3", tensors, tmp_path / "g.safetensors")
    assert (made.latent, made.style, made.layers, made.shape) == (6, 5, 8, (3, 16, 16))
    network = made.synthesis
    assert isinstance(network, Synthesis3)
    grid, styles = signals(6, 16), torch.randn(1, 8, 5, generator=generator(0, "styles"))
    x = network.input(styles[:, 0])
    for number, (name, after) in enumerate(zip(network.names, grid, strict=True)):
        at, before, last = f"synthesis.{name}", grid[max(number - 1, 0)], number == 6
        style = _affine(tensors, at, styles[:, number + 1])[0]
        weight = tensors[at + ".weight"]
        own = _own(weight, style / math.sqrt(weight.shape[1]) if last else style, unit=not last) / math.sqrt(1.7)
        y = F.conv2d(x, own, padding=weight.shape[2] - 1) + tensors[at + ".bias"].view(-1, 1, 1)
        if not last:
            fine = 2 * max(before.rate, after.rate)
            rise, fall = tensors[at + ".up_filter"].double().numpy(), tensors[at + ".down_filter"].double().numpy()
            up, down = fine // before.rate, fine // after.rate
            pad = (after.size - 1) * down + 1 - y.shape[-1] * up + len(rise) + len(fall) - 2
            low = (pad + up) // 2
            high = pad - low

            def resampled(row: np.ndarray, taps: np.ndarray, up: int, down: int, low: int, high: int) -> np.ndarray:
                zeros = np.zeros(len(row) * up)
                zeros[::up] = row
                zeros = np.pad(zeros, (max(low, 0), max(high, 0)))[max(-low, 0) : len(zeros) + max(low, 0) + high]
                return np.asarray(upfirdn(taps * up, zeros)[len(taps) - 1 : len(zeros)][::down])

            for axis in (2, 3):
                y = torch.from_numpy(np.apply_along_axis(resampled, axis, y.detach().numpy(), rise, up, 1, low, high))
            y = math.sqrt(2) * F.leaky_relu(y, 0.2)
            for axis in (2, 3):
                y = torch.from_numpy(np.apply_along_axis(resampled, axis, y.numpy(), fall, 1, down, 0, 0))
        assert y.shape[-1] == after.size
        ours = network.get_submodule(name)(x, styles[:, number + 1])
        torch.testing.assert_close(ours, y.float(), atol=1e-4, rtol=1e-3)
        x = ours
    torch.testing.assert_close(made.from_style(styles), (x / 8 + 0.5).clamp(0, 1))


@pytest.mark.parametrize("kind", ["stylegan2", "stylegan3"])
def test_pictures_are_cropped_resized_and_grey(kind: str, tmp_path: Path) -> None:
    tensors = _stylegan2() if kind == "stylegan2" else _stylegan3()
    path = tmp_path / "g.safetensors"
    plain = _loaded(kind, tensors, path)
    small = _loaded(kind, tensors, path, ",crop=8,resize=8,grey=true")
    z = plain.sample(2, generator(0, "z"))
    whole, cut = plain.decode(z), small.decode(z)
    assert cut.shape == (2, 1, 8, 8)
    inner = whole[:, :, 4:12, 4:12]
    grey = 0.299 * inner[:, :1] + 0.587 * inner[:, 1:2] + 0.114 * inner[:, 2:]
    unclipped = ((inner > 0) & (inner < 1)).all(1, keepdim=True)
    assert unclipped.float().mean() > 0.2
    torch.testing.assert_close(cut[unclipped], grey[unclipped], atol=1e-5, rtol=1e-4)
    z.requires_grad_(True)
    assert torch.autograd.grad(small.decode(z).sum(), z)[0].abs().sum() > 0
    assert torch.equal(small.implausibility(cut), torch.zeros(2))


def _without(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if k != name}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({**_stylegan2(), "mapping.embed.weight": torch.zeros(2)}, r"1 unknown tensors \(first mapping.embed.weight\)"),
        (_without("synthesis.b8.conv0.bias", _stylegan2()), r"1 missing \(first synthesis.b8.conv0.bias\)"),
        ({**_stylegan2(), "synthesis.b4.const": torch.zeros(4, 4, 3)}, "1 of another shape"),
        ({"conv.weight": torch.zeros(2)}, r"holds no stylegan2 generator \(first tensor conv.weight\)"),
        (_stylegan3(), "holds no stylegan2 generator"),
        (_without("synthesis.b8.torgb.weight", _stylegan2()), "holds no stylegan2 generator"),
    ],
)
def test_files_of_other_networks_are_refused(tensors: dict[str, Tensor], words: str, tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    with pytest.raises(UsageError, match=words) as raised:
        _loaded("stylegan2", tensors, path)
    assert "\n" not in str(raised.value)
    assert "save_file" in str(raised.value)


def test_other_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    with pytest.raises(UsageError, match="cannot read the generator"):
        PRIORS.build(f"stylegan2:file={path}")
    path.write_bytes(b"\x80\x04 a pickle")
    with pytest.raises(UsageError, match="is not a whole safetensors file"):
        PRIORS.build(f"stylegan2:file={path}").require((3, 16, 16))
    save_file(_stylegan2(), path)
    prior = PRIORS.build(f"stylegan2:file={path}")
    assert label(prior) == f"stylegan2:file={path}"
    with pytest.raises(UsageError, match="makes 3×16×16 pictures and the public ones are 3×32×32; set resize"):
        prior.require((3, 32, 32))
    with pytest.raises(UsageError, match="set grey"):
        prior.require((1, 16, 16))
    with pytest.raises(UsageError, match="lower crop"):
        PRIORS.build(f"stylegan2:file={path},crop=20").require((3, 20, 20))
    with pytest.raises(UsageError, match="has changed since"):
        PRIORS.build({"kind": "stylegan2", "file": str(path), "source": "0" * 24})
