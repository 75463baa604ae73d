"""Controls and floors with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.core.seeds import ambient, generator
from leakscope.defenses.gaussian import Gaussian
from leakscope.experiments.floors import FLOORS, class_means
from leakscope.experiments.stand_ins import (
    PixelPath,
    canary,
    canary_leak,
    easy_pictures,
    identity_control,
    residual_control,
)


@pytest.mark.parametrize("shape", [(7, 4, 4), (3, 8, 8), (5,), (6, 9)])
def test_the_pixel_path_loses_nothing(shape: tuple[int, ...]) -> None:
    x = torch.rand(3, 2, 8, 8, generator=generator(0, "x"))
    z = PixelPath(shape)(x)
    assert z[0].numel() == x[0].numel()
    back = F.pixel_shuffle(z, 8 // shape[1]) if len(shape) == 3 else z.view_as(x)
    assert torch.equal(back, x)


def test_an_uneven_grid_enlarges_and_never_drops_pixels() -> None:
    z = PixelPath((4, 3, 3))(torch.rand(2, 1, 8, 8, generator=generator(0, "x")))
    assert z.shape == (2, 9, 3, 3)  # 9×9 ≥ 8×8 pixels


def test_the_identity_control_runs_as_a_target() -> None:
    control = identity_control((4, 2, 2), classes=5)
    x = torch.rand(3, 1, 8, 8)
    out = control.run(x)
    assert out.scores.shape == (3, 5)
    assert torch.equal(F.pixel_shuffle(out.released, 4), x)


PUBLIC = torch.rand(300, 1, 8, 8, generator=generator(0, "public"))


def small_target(cut: str, defense: Defense | None = None) -> SplitModel:
    with ambient(0, "canary target"):
        model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 64, 6), nn.Linear(6, 4))
    return SplitModel(model, cut, defense=defense).eval()


@pytest.mark.parametrize(("cut", "carried"), [("0", 32), ("2", 3)])
@torch.no_grad()
def test_a_canary_adds_its_signal_at_its_places_and_nowhere_else(cut: str, carried: int) -> None:
    target = small_target(cut)
    planted = canary(target, PUBLIC, generator(0, "places"))
    x = torch.rand(5, 1, 8, 8, generator=generator(0, "x"))
    own, features = target.encode(x), planted.encode(x)
    assert features.shape == own.shape
    assert len(set(planted.places.tolist())) == len(planted.places) == carried
    added = torch.zeros_like(own).flatten(1)
    added[:, planted.places] = planted.signal(x) * planted.sizes
    assert added[:, planted.places].abs().min() > 0
    torch.testing.assert_close(features, own + added.view_as(own))
    assert torch.equal(target.encode(x), own)  # the target itself is left alone
    # The server works on the planted features: its layers behind the cut are those of the target.
    scores = features
    for layer in list(target.model.children())[int(cut) + 1 :]:
        scores = layer(scores)
    torch.testing.assert_close(planted(x), scores)


@torch.no_grad()
def test_a_canary_carries_principal_components_of_variance_one() -> None:
    planted = canary(small_target("0"), PUBLIC, generator(0, "places"))
    signal = planted.signal(PUBLIC).double()
    torch.testing.assert_close(signal.mean(0), torch.zeros(32).double(), atol=1e-4, rtol=0)
    # Uncorrelated, each of variance one …
    torch.testing.assert_close(signal.T @ signal / len(signal), torch.eye(32).double(), atol=1e-4, rtol=0)
    # … and the scores on the leading eigenvectors of the covariance of the pixels, up to their sign.
    pixels = PUBLIC.flatten(1).double().numpy()
    values, vectors = np.linalg.eigh(np.cov(pixels, rowvar=False, bias=True))
    leading = (pixels - pixels.mean(0)) @ vectors[:, ::-1][:, :32] / np.sqrt(values[::-1][:32])
    np.testing.assert_allclose(np.abs(leading), signal.abs().numpy(), atol=1e-3)


@torch.no_grad()
def test_a_canary_is_two_to_four_times_the_released_deviation() -> None:
    for number in range(20):
        target = small_target("0")
        planted = canary(target, PUBLIC, generator(number, "places"))
        amplitude = planted.sizes / target.encode(PUBLIC).flatten(1).std(0)[planted.places]
        assert amplitude.min() >= 2 - 1e-4
        assert amplitude.max() <= 4 + 1e-4
        assert amplitude.max() - amplitude.min() > 1  # random, not one amplitude for all
    # Behind noise far above the features, by that noise: 300 draws estimate σ to a few per cent.
    noisy = canary(small_target("0", Gaussian(sigma=5.0)), PUBLIC, generator(0, "places"))
    assert 0.8 * 2 * 5 < noisy.sizes.min() < noisy.sizes.max() < 1.2 * 4 * 5


@torch.no_grad()
def test_a_feature_that_never_varies_gets_a_tenth_of_the_usual_size() -> None:
    target = small_target("0")
    first = target.model.get_submodule("0")
    assert isinstance(first, nn.Conv2d)
    first.weight[1] = 0  # the second of three channels is constant: places 64 … 127
    planted = canary(target, PUBLIC, generator(0, "places"))
    usual = target.encode(PUBLIC).flatten(1).std(0).mean()
    dead = (planted.places >= 64) & (planted.places < 128)
    assert dead.any()
    amplitude = planted.sizes[dead] / (usual / 10)
    assert amplitude.min() >= 2 - 1e-4
    assert amplitude.max() <= 4 + 1e-4


@torch.no_grad()
def test_the_leak_of_a_canary_is_one_for_the_truth_and_zero_for_the_class_mean() -> None:
    planted = canary(small_target("0"), PUBLIC, generator(0, "places"))
    truth = torch.rand(6, 1, 8, 8, generator=generator(0, "truth"))
    means = truth.view(2, 3, 1, 8, 8).mean(1).repeat_interleave(3, 0)
    assert canary_leak(planted, truth, truth, means) == 1
    assert canary_leak(planted, means, truth, means) == 0
    # Components are affine in the pixels: half of the way leaves a quarter of the squares.
    assert canary_leak(planted, (truth + means) / 2, truth, means) == pytest.approx(0.75, abs=1e-5)
    # Directions of the picture that are not planted count for nothing.
    hidden = torch.linalg.svd(planted.directions, full_matrices=True).U[:, -1].view(1, 1, 8, 8)
    assert canary_leak(planted, truth + hidden, truth, means) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("cut", ["0", "2"])
@torch.no_grad()
def test_the_defence_acts_on_the_planted_features_too(cut: str) -> None:
    planted = canary(small_target(cut, Gaussian(sigma=5.0)), PUBLIC, generator(0, "places"))
    clean = planted.encode(PUBLIC).flatten(1)
    released = planted.release(PUBLIC, generator(0, "r")).flatten(1)
    noise = (released - clean)[:, planted.places]
    assert noise.std(0).min() > 4
    assert noise.std(0).max() < 6
    assert noise.mean().abs() < 0.6
    assert torch.equal(planted.run(PUBLIC, generator(0, "r")).released.flatten(1), released)


def test_floors_equal_their_slow_definitions() -> None:
    rng = generator(0, "floors")
    public = ImageSet(torch.rand(20, 1, 3, 3, generator=rng), torch.randint(0, 3, (20,), generator=rng), tuple("abcd"))
    victims = ImageSet(torch.rand(5, 1, 3, 3, generator=rng), torch.tensor([0, 1, 2, 2, 3]), tuple("abcd"))
    means = class_means(public, victims.labels)
    for row, label in enumerate(victims.labels.tolist()):
        own = public.images[public.labels == label]
        slow = own.mean(0) if len(own) else public.images.mean(0)
        torch.testing.assert_close(means[row], slow)
    nearest = FLOORS["nearest-public"](public, victims)
    for row in range(5):
        distances = ((public.images - victims.images[row]) ** 2).flatten(1).sum(1)
        assert torch.equal(nearest[row], public.images[distances.argmin()])
    assert FLOORS["mean"](public, victims).shape == victims.images.shape


def test_the_residual_control_has_exactly_one_inverse() -> None:
    control = residual_control((1, 8, 8), classes=3)
    x = torch.rand(1, 1, 8, 8, generator=generator(0, "x"))
    for name in ("block1", "block2"):
        block = control.model.get_submodule(name)
        norms = []
        for layer, channels in ((block.get_submodule("first"), 1), (block.get_submodule("second"), 4)):
            size = channels * 64
            columns = layer(torch.eye(size).view(size, channels, 8, 8)).flatten(1)
            norms.append(torch.linalg.matrix_norm(columns, ord=2).item())
        # relu is 1-Lipschitz: the branch contracts, so x ↦ x + branch(x) is one to one (Banach).
        assert norms[0] * norms[1] < 1
    y = control.encode(x)
    for name in ("block2", "block1"):
        block, guess = control.model.get_submodule(name), y
        for _ in range(60):
            guess = guess + y - block(guess)
        y = guess
    torch.testing.assert_close(y, x, atol=1e-5, rtol=0)


def test_easy_pictures_have_few_degrees_of_freedom() -> None:
    pictures = easy_pictures(200, (3, 32, 32), "public")
    assert pictures.images.min() >= 0
    assert pictures.images.max() <= 1
    flat = pictures.images.flatten(1)
    assert torch.linalg.matrix_rank(flat - flat.mean(0), rtol=1e-4) <= 3 * 16
    assert not torch.equal(pictures.images, easy_pictures(200, (3, 32, 32), "victims").images)
