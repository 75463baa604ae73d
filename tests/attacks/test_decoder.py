"""The decoder: shapes, published sizes, losses against reference implementations, training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from torch import Tensor, nn

from leakscope.attacks._decoders import FRONTS, res_norm
from leakscope.attacks._losses import LOSSES, Perceptual, RandomConvolutions, one_minus_ssim
from leakscope.attacks.decoder import TrainedDecoder
from leakscope.attacks.ridge import Ridge
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, ThreatModel, grant
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import small_view, smooth_images

CPU = torch.device("cpu")


class TestDecoder(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return TrainedDecoder(steps=40, capacity="small")


class TestRandomConvDecoder(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return TrainedDecoder(capacity="small", loss="random-conv", steps=40, learning_rate=1e-2)


class TestDenseDecoder(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return TrainedDecoder("dense", "small", steps=40)


@pytest.mark.parametrize(("blocks", "parameters"), [(8, 711_539), (4, 415_091)])
def test_residual_decoders_have_their_published_size(blocks: int, parameters: int) -> None:
    network = res_norm((8, 8, 8), (3, 32, 32), blocks, 64)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.rand(2, 8, 8, 8)).shape == (2, 3, 32, 32)


@pytest.mark.parametrize(
    ("front", "shape", "image"),
    [
        ("auto", (4, 7, 7), (1, 28, 28)),
        ("auto", (4, 9, 6), (3, 28, 20)),
        ("auto", (4, 34, 34), (1, 32, 32)),
        ("auto", (4, 1, 1), (1, 16, 16)),
        ("auto", (10,), (3, 20, 24)),
        ("auto", (5,), (6, 1, 1)),
        ("auto", (17, 6), (3, 32, 32)),
        ("auto", (7, 6), (3, 32, 32)),
        ("conv", (16, 6), (1, 32, 32)),
        ("dense", (4, 7, 7), (1, 28, 28)),
        ("residual", (4, 7, 7), (1, 28, 28)),
        ("residual", (4, 30, 30), (1, 28, 28)),
        ("residual", (4, 2, 2), (3, 32, 32)),
    ],
)
def test_any_features_become_a_picture_of_the_right_size(
    front: str, shape: tuple[int, ...], image: tuple[int, int, int]
) -> None:
    network = FRONTS[front](shape, image, "small")
    assert network(torch.rand(2, *shape)).shape == (2, *image)


def test_a_vector_has_no_place_for_a_convolution() -> None:
    with pytest.raises(UsageError, match="front=auto or dense"):
        FRONTS["residual"]((10,), (1, 16, 16), "small")


def test_capacities_grow() -> None:
    for front in ("conv", "dense", "residual"):
        small, medium, large = (
            sum(p.numel() for p in FRONTS[front]((8, 8, 8), (3, 32, 32), size).parameters())
            for size in ("small", "medium", "large")
        )
        assert small < medium < large


def test_ssim_is_that_of_scikit_image() -> None:
    truth = smooth_images(1, "ssim", (1, 24, 20))
    guess = (truth + 0.1 * torch.randn(truth.shape, generator=seeds.generator(0, "n"))).clamp(0, 1)
    _, values = structural_similarity(
        truth[0, 0].numpy(), guess[0, 0].numpy(), data_range=1.0, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False, win_size=11, full=True,
    )  # fmt: skip
    assert float(one_minus_ssim(guess, truth)) == pytest.approx(1 - values[5:-5, 5:-5].mean(), abs=1e-4)
    assert float(one_minus_ssim(truth, truth)) == pytest.approx(0, abs=1e-6)
    assert one_minus_ssim(torch.rand(2, 3, 5, 8), torch.rand(2, 3, 5, 8)).isfinite()


def test_perceptual_loss_is_lpips(shared_data: Path) -> None:
    """Zero at the truth, growing with the noise, and differentiable for grey and small pictures."""
    perceptual = Perceptual(str(shared_data / "weights" / "lpips-alexnet-v0.1.safetensors"), CPU)
    image = smooth_images(2, "lpips", (3, 64, 64))
    noisy = (image + 0.2 * torch.randn(image.shape, generator=seeds.generator(0, "n"))).clamp(0, 1)
    assert perceptual.distance(image, image).abs().max() < 1e-6
    assert (perceptual.distance(noisy, image) > perceptual.distance((image + noisy) / 2, image)).all()
    grey = smooth_images(2, "grey", (1, 28, 28)).requires_grad_()
    (gradient,) = torch.autograd.grad(perceptual(grey, torch.zeros_like(grey)), grey)
    assert gradient.abs().sum() > 0


def test_random_convolutions_are_a_perceptual_loss_without_a_file() -> None:
    """Zero at the truth, the same every time, colour or grey; and a shifted edge costs less than a blurred one."""
    loss = RandomConvolutions()
    image = smooth_images(2, "random-conv", (3, 16, 16))
    noisy = (image + 0.2 * torch.randn(image.shape, generator=seeds.generator(0, "n"))).clamp(0, 1)
    assert float(loss(image, image)) == pytest.approx(0, abs=1e-6)
    assert loss(noisy, image) > loss((image + noisy) / 2, image) > 0
    assert float(RandomConvolutions()(noisy, image)) == float(loss(noisy, image))
    grey = smooth_images(2, "grey", (1, 5, 7)).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(grey, torch.zeros_like(grey)), grey)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
    # Of two errors of one size in pixels, that which destroys texture is the larger.
    checks = ((torch.arange(16)[:, None] + torch.arange(16)) % 2).float().expand(1, 1, 16, 16)
    grey_out, brighter = torch.full_like(checks, 0.5), 0.5 * checks + 0.5
    assert nn.functional.mse_loss(grey_out, checks) >= nn.functional.mse_loss(brighter, checks)
    assert loss(grey_out, checks) - 0.25 > 2 * (loss(brighter, checks) - 0.125)


def test_perceptual_loss_without_weights_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"weights=PATH"):
        TrainedDecoder(loss="perceptual").prepare(small_view(TrainedDecoder.needs), torch.Generator())
    (tmp_path / "x.safetensors").write_bytes(b"not weights")
    for name in ("x.safetensors", "absent.safetensors"):
        with pytest.raises(UsageError, match="cannot be read"):
            LOSSES["perceptual"](str(tmp_path / name), CPU)


@pytest.mark.parametrize("loss", ["l1", "ssim", "random-conv"])
def test_losses_train(loss: str) -> None:
    attack = TrainedDecoder(capacity="small", loss=loss, steps=40)  # type: ignore[arg-type]
    curve = attack.prepare(small_view(attack.needs), seeds.generator(0, "p")).diagnostics.curve
    assert curve[-1] < 0.7 * curve[0]


class Noise(Defense):
    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return z + 0.2 * torch.randn(z.shape, generator=rng)


def test_an_encoder_at_home_spends_no_queries_but_those_that_check_it() -> None:
    attack = TrainedDecoder(capacity="small", steps=20)
    for defense in (None, Noise()):
        view = small_view(attack.needs | {Access.ENCODER}, defense=defense)
        diagnostics = attack.prepare(view, seeds.generator(0, "p")).diagnostics
        assert diagnostics.details["random_release"] == (defense is not None)
        assert view.budget.spent == 8


def test_a_random_release_is_asked_anew_while_the_budget_lasts() -> None:
    attack = TrainedDecoder(capacity="small", steps=20)
    spent = {}
    for queries in (None, 200):
        view = small_view(attack.needs, defense=Noise(), queries=queries)
        assert attack.prepare(view, seeds.generator(0, "p")).diagnostics.details["random_release"]
        spent[queries] = view.budget.spent
    assert spent[None] >= 160 + 8 + 20 * 16
    assert 168 <= spent[200] <= 200


def test_training_stops_early_and_keeps_the_best() -> None:
    """A learning rate that wrecks the network: the weights kept are those that validated best."""
    attack = TrainedDecoder(capacity="small", steps=200, learning_rate=3000.0, patience=2)
    prepared = attack.prepare(small_view(attack.needs), seeds.generator(0, "p"))
    curve = prepared.diagnostics.curve
    assert prepared.diagnostics.details["steps"] == 40
    assert min(curve) == curve[0]
    untrained = replace(attack, steps=0).prepare(small_view(attack.needs), seeds.generator(0, "p"))
    assert all(torch.equal(tensor, untrained.tensors[name]) for name, tensor in prepared.tensors.items())


def test_it_beats_the_linear_inverter_behind_pooling(shared_data: Path) -> None:
    """Real digits, a convolution, its rectifier and a maximum: what an affine map cannot undo."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 14 * 14, 10))

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.cut(x))
            return scores

    with np.load(shared_data / "mnist.npz") as arrays:
        images = torch.from_numpy(arrays["train_images"][:616]).float().unsqueeze(1) / 255
    with seeds.ambient(0, "pooled"):
        target = SplitModel(Pooled(), "cut").eval()
    public = ImageSet(images[16:], torch.zeros(600, dtype=torch.int64), tuple("0123456789"))
    with torch.no_grad():
        seen, errors = Observed(features=target.encode(images[:16])), []
    for attack in (Ridge(), TrainedDecoder(capacity="small", steps=120, learning_rate=1e-2)):
        threat = ThreatModel(attack.needs)
        view = grant(target, threat, public, seeds.generator(0, "q"), classes=10, device=CPU)
        prepared = attack.prepare(view, seeds.generator(0, "p"))
        guess = attack.reconstruct(view, prepared, seen, seeds.generator(0, "r")).images
        errors.append(float((guess - images[:16]).square().mean()))
    assert errors[1] < 0.7 * errors[0]
    assert errors[1] < 10**-2.2  # above 22 dB


def test_weights_survive_another_generator() -> None:
    """Everything learnt is in `prepared`: the generator of `reconstruct` cannot matter."""
    attack = TrainedDecoder(capacity="small", steps=10)
    view = small_view(attack.needs)
    prepared, seen = attack.prepare(view, seeds.generator(0, "p")), TestDecoder().seen(attack)
    first, second = (attack.reconstruct(view, prepared, seen, seeds.generator(n, "r")).images for n in (1, 2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("fields", [{"steps": -1}, {"validation": 0.0}, {"learning_rate": 0.0}, {"batch": 0}])
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        TrainedDecoder(**fields)  # type: ignore[arg-type]


def test_a_network_of_convolutions_only_runs_on_maps() -> None:
    assert isinstance(FRONTS["auto"]((4, 8, 8), (1, 16, 16), "small"), nn.Sequential)
    assert not isinstance(FRONTS["auto"]((4,), (1, 16, 16), "small"), nn.Sequential)


@pytest.mark.parametrize(("front", "suits"), [("auto", True), ("dense", True), ("residual", False), ("conv", False)])
def test_a_front_for_maps_says_that_vectors_do_not_suit_it(front: str, suits: bool) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(256, 10), nn.Linear(10, 3))
    reason = TrainedDecoder(front).unsuited(SplitModel(network, "1"), (1, 16, 16))  # type: ignore[arg-type]
    assert (reason is None) == suits
    assert network.training


def test_without_steps_training_goes_on_until_a_longer_round_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features without any trace of a picture: nothing to learn beyond the mean picture, which the first rounds do."""
    monkeypatch.setattr("leakscope.attacks._decoder_training._FEWEST", 60)

    class Nothing(Defense):
        def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
            return torch.zeros_like(z)

    attack = TrainedDecoder(capacity="small", batch=32)
    blind = attack.prepare(small_view(attack.needs, defense=Nothing()), seeds.generator(0, "p")).diagnostics
    seeing = attack.prepare(small_view(attack.needs), seeds.generator(0, "p")).diagnostics
    assert blind.converged is True
    assert blind.details["steps"] >= 60 + 120
    assert min(seeing.curve) < 0.5 * min(blind.curve)
