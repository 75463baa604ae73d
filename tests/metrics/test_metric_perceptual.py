from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.compat import ensure_torchvision
from leakscope.core.errors import UsageError
from leakscope.core.metric import Reference
from leakscope.metrics import perceptual
from leakscope.metrics.perceptual import LearnedPerceptualDistance, PerceptualSimilarity
from leakscope.nn import alexnet


def lpips(guess: Tensor, truth: Tensor, root: Path) -> Tensor:
    return LearnedPerceptualDistance()(guess, truth, Reference(truth, root))


def pictures(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(seed))


def torchmetrics_lpips(file: Path, guess: Tensor, truth: Tensor, own_linear_weights: bool) -> Tensor:
    """LPIPS as torchmetrics writes it, with our AlexNet (theirs would be downloaded)."""
    ensure_torchvision()
    from torchmetrics.functional.image.lpips import _LPIPS

    tensors = load_file(file)
    network = _LPIPS(pretrained=own_linear_weights, net="alex", pnet_rand=True)
    for name, module in network.net.named_modules():
        index = name.rpartition(".")[2]
        if isinstance(module, torch.nn.Conv2d):
            module.load_state_dict({key: tensors[f"features.{index}.{key}"] for key in ("weight", "bias")})
    if not own_linear_weights:
        for index in range(5):
            getattr(network, f"lin{index}").model[-1].load_state_dict(
                {"weight": tensors[f"lin{index}"].view(1, -1, 1, 1)}
            )
    with torch.no_grad():
        values: Tensor = network.eval()(2 * guess - 1, 2 * truth - 1)
    return values.flatten()


def test_equals_torchmetrics_with_the_same_weights(stand_in_root: Path) -> None:
    guess, truth = pictures(3, 3, 64, 70), pictures(3, 3, 64, 70, seed=1)
    expected = torchmetrics_lpips(stand_in_root / "weights" / alexnet.FILE, guess, truth, own_linear_weights=False)
    torch.testing.assert_close(lpips(guess, truth, stand_in_root), expected, rtol=1e-4, atol=1e-6)


def test_real_weights_equal_torchmetrics_own_linear_weights(shared_data: Path) -> None:
    guess, truth = pictures(3, 3, 64, 64), pictures(3, 3, 64, 64, seed=1)
    expected = torchmetrics_lpips(shared_data / "weights" / alexnet.FILE, guess, truth, own_linear_weights=True)
    torch.testing.assert_close(lpips(guess, truth, shared_data), expected, rtol=1e-4, atol=1e-6)


def test_real_weights_prefer_a_shift_to_noise_of_the_same_error(shared_data: Path) -> None:
    """What LPIPS is for: a brighter picture and a noisy one, equal in MSE, are not equally far."""
    images = np.load(shared_data / "cifar10.npz")["test_images"][:16]
    truth = 0.2 + 0.6 * torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    sign = torch.randint(2, truth.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    brighter, noisy = lpips(truth + 0.1, truth, shared_data), lpips(truth + 0.1 * sign, truth, shared_data)
    assert (brighter < noisy).all()
    assert 0.05 < float(noisy.mean()) < 1


@settings(max_examples=8)
@given(seed=st.integers(0, 99))
def test_symmetric_positive_and_zero_for_the_truth(seed: int, stand_in_root: Path) -> None:
    guess, truth = pictures(2, 1, 40, 40, seed), pictures(2, 1, 40, 40, seed + 1000)
    values = lpips(guess, truth, stand_in_root)
    assert (values > 0).all()
    torch.testing.assert_close(values, lpips(truth, guess, stand_in_root))
    assert lpips(truth, truth, stand_in_root).eq(0).all()


def test_small_and_grey_pictures_are_enlarged_and_repeated(stand_in_root: Path) -> None:
    guess, truth = pictures(2, 1, 28, 14), pictures(2, 1, 28, 14, seed=1)
    large_guess, large_truth = (
        F.interpolate(image, size=(128, 64), mode="bilinear", align_corners=False).repeat(1, 3, 1, 1)
        for image in (guess, truth)
    )
    torch.testing.assert_close(lpips(guess, truth, stand_in_root), lpips(large_guess, large_truth, stand_in_root))
    with pytest.raises(UsageError, match="not 2 channels"):
        lpips(pictures(1, 2, 64, 64), pictures(1, 2, 64, 64), stand_in_root)


def test_psim_is_one_minus_lpips_on_alexnet(stand_in_root: Path) -> None:
    guess, truth = pictures(2, 3, 64, 64), pictures(2, 3, 64, 64, seed=1)
    psim = PerceptualSimilarity("alexnet")(guess, truth, Reference(truth, stand_in_root))
    torch.testing.assert_close(psim, 1 - lpips(guess, truth, stand_in_root))


@given(side=st.integers(1, 20), channels=st.sampled_from((1, 3)), seed=st.integers(0, 99))
def test_random_conv_similarity_lies_between_zero_and_one(side: int, channels: int, seed: int) -> None:
    guess, truth = pictures(2, channels, side, side, seed), pictures(2, channels, side, side, seed + 1000)
    metric = PerceptualSimilarity("random-conv")
    values = metric(guess, truth, Reference(truth))
    assert ((values >= 0) & (values < 1)).all()
    assert metric(truth, truth, Reference(truth)).eq(1).all()


def test_random_conv_sees_a_picture_fade() -> None:
    truth = pictures(8, 3, 24, 24)
    metric = PerceptualSimilarity("random-conv")
    fading = [float(metric(0.5 + c * (truth - 0.5), truth, Reference(truth)).mean()) for c in (1, 0.7, 0.4, 0.1)]
    assert all(more - less > 0.01 for more, less in pairwise(fading)), fading


def test_random_conv_is_the_same_everywhere_and_leaves_the_ambient_generator_alone() -> None:
    from leakscope.metrics.networks import RandomConv

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = RandomConv()
    torch.manual_seed(6)
    second = RandomConv()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    torch.manual_seed(5)
    RandomConv()
    assert torch.equal(torch.get_rng_state(), before)


def test_parts_give_what_the_whole_gives(stand_in_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guess, truth = pictures(5, 3, 64, 64), pictures(5, 3, 64, 64, seed=1)
    whole = lpips(guess, truth, stand_in_root)
    monkeypatch.setattr(perceptual, "PIXELS_AT_ONCE", 2 * 64 * 64)
    torch.testing.assert_close(lpips(guess, truth, stand_in_root), whole)


def test_a_damaged_file_and_a_file_of_something_else_are_one_line(stand_in_root: Path, tmp_path: Path) -> None:
    good, folder = stand_in_root / "weights" / alexnet.FILE, tmp_path / "weights"
    folder.mkdir()
    truth = pictures(1, 3, 64, 64)
    (folder / alexnet.FILE).write_bytes(good.read_bytes()[:1_000_000])
    with pytest.raises(UsageError, match=r"cannot be read .*copy the file again") as damaged:
        lpips(truth, truth, tmp_path)
    save_file({"other": torch.zeros(3)}, folder / alexnet.FILE)
    with pytest.raises(UsageError, match=r"does not hold LPIPS v0\.1.*copy the file again") as other:
        lpips(truth, truth, tmp_path)
    assert "\n" not in str(damaged.value) + str(other.value)
