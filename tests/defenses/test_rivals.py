"""The inner attacker, the tied sparse layer and pruning."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from torch import Tensor, nn

from leakscope.core import seeds
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense, Stack, Step
from leakscope.core.errors import UsageError
from leakscope.core.model import SplitModel
from leakscope.defenses._inner_decoder import InnerDecoder
from leakscope.defenses.adversarial import Adversarial, InnerAttacker
from leakscope.defenses.cem_logdet import CEMLogDet
from leakscope.defenses.gaussian import Gaussian
from leakscope.defenses.patrol import Patrol, Pruning
from leakscope.defenses.tied_sparse import TiedSparse, TiedSparseLayer, last_activation
from leakscope.models.vgg11_sgm import VGG11SGM
from leakscope.nn.ssim import ssim
from leakscope.testing import DefenseContract

SMALL = {"width": 8, "blocks": 1}


class TestAdversarial(DefenseContract):
    @pytest.fixture(params=["ssim", "mse"])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        threshold = 0.0 if request.param == "ssim" else 0.9
        return Adversarial(0.3, threshold, loss=request.param, width=8, blocks=1)

    @pytest.fixture
    def neutral(self) -> Defense:
        return Adversarial(0)

    def test_the_decoder_learns_and_the_encoder_is_pushed_against_it(self, defense: Defense) -> None:
        split, step, aux = self.step(defense)
        assert isinstance(aux, InnerAttacker)
        assert not list(defense.optimised(aux))
        errors = []
        for _ in range(15):
            penalty = defense.penalty(step)
            errors.append(aux.error.item())
        assert errors[-1] < errors[0]
        assert penalty is not None
        penalty.backward()
        first = next(split.parameters())
        assert first.grad is not None
        assert first.grad.abs().sum() > 0
        assert all(p.grad is None for p in aux.parameters()), "the encoder's loss must not train the decoder"
        # Against the gradient, the attacker's success falls.
        z = step.released.detach().requires_grad_()

        def error(guess: Tensor, x: Tensor) -> Tensor:
            return -ssim(guess, x).mean()

        contest_error = aux.attack(z, step.x, error)
        (gradient,) = torch.autograd.grad(-contest_error, z)
        moved = aux.attack(
            z.detach() - 0.1 * gradient / gradient.norm(), step.x, lambda guess, x: -ssim(guess, x).mean()
        )
        assert moved > contest_error

    def test_the_inner_optimiser_is_checkpointed(self, defense: Defense) -> None:
        """Two steps, saved and loaded, then a third, is three steps."""
        _, step, aux = self.step(defense)
        for _ in range(2):
            defense.penalty(step)
        file = io.BytesIO()
        torch.save(aux.state_dict(), file)
        file.seek(0)
        _, other_step, other = self.step(defense)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(defense.penalty(step), defense.penalty(other_step))  # type: ignore[arg-type]
        for mine, loaded in zip(aux.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, loaded)

    def test_a_content_encoder_is_left_alone(self) -> None:
        defense = Adversarial(1.0, 0.99, **SMALL)  # type: ignore[arg-type]
        penalty = defense.penalty(self.step(defense)[1])
        assert penalty is not None
        assert penalty.item() == 0

    def test_the_inner_rate_falls_on_schedule(self, defense: Defense) -> None:
        from dataclasses import replace

        _, step, aux = self.step(defense)
        assert isinstance(aux, InnerAttacker)
        for epoch, rate in ((0, 1e-3), (24, 1e-3), (25, 2e-4), (63, 4e-5)):
            defense.penalty(replace(step, epoch=epoch, epochs=100))
            assert aux.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


class TestTiedSparse(DefenseContract):
    @pytest.fixture(params=[None, 40])
    def defense(self, request: pytest.FixtureRequest) -> Defense:
        return TiedSparse(atoms=request.param)

    @pytest.mark.parametrize("place", ["before-activation", "after"])
    def test_it_stands_before_the_sigmoid_of_the_bottleneck_as_published(self, place: str) -> None:
        """512 features of CIFAR-10 at the published cut; a dictionary of 512×512, and values in (0, 1)."""
        x = torch.rand(3, 3, 32, 32, generator=seeds.generator(0, "x"))
        with seeds.ambient(0, "vgg"):
            split = SplitModel(VGG11SGM(width=0.1).build((3, 32, 32), 10), "client").eval()
            rebuilt = TiedSparse(place=place).rebuild(split, x[:2]).eval()  # type: ignore[arg-type]
        dictionary = next(p for name, p in rebuilt.named_parameters() if "dictionary" in name).detach()
        assert dictionary.shape == (512, 512)
        with torch.no_grad():
            narrow = split.model.get_submodule("client.narrow")(split.model.get_submodule("client.body")(x)).flatten(1)
            if place == "after":
                assert rebuilt.cut == "client.code"
                expected = _slow_code(narrow.sigmoid(), dictionary, 0.01)
            else:
                assert rebuilt.cut == "client"
                expected = _slow_code(narrow, dictionary, 0.01).sigmoid()
            released = rebuilt.encode(x).flatten(1)
        torch.testing.assert_close(released, expected, rtol=1e-3, atol=1e-4)
        inside = (released > 0) & (released < 1)
        assert inside.all() == (place == "before-activation")

    def test_an_activation_is_found_at_the_end_of_the_cut_layer(self) -> None:
        model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.BatchNorm2d(2), nn.Tanh())), nn.ReLU())
        assert last_activation(model, "0") == "0.1.1"
        assert last_activation(model, "1") == "1"
        assert last_activation(model, "0.0") is None

    def test_stacks_with_cem_and_noise(self) -> None:
        stack = Stack((TiedSparse(), Gaussian(0.025), CEMLogDet()))
        split, step, _ = self.step(stack)
        assert split.cut == "features.code"
        penalty = stack.penalty(step)
        assert penalty is not None
        (step.task_loss + penalty).backward()
        dictionary = dict(split.named_parameters())["model.features.code.dictionary"]
        assert dictionary.grad is not None
        assert dictionary.grad.abs().sum() > 0


class TestPatrol(DefenseContract):
    @pytest.fixture
    def defense(self) -> Defense:
        return Patrol(0.5, at=0.0, above=4)

    @pytest.fixture
    def neutral(self) -> Defense:
        return Patrol(0)

    def test_the_least_important_filters_go_and_stay_away(self, defense: Defense) -> None:
        split, step, aux = self.step(defense)
        assert isinstance(aux, Pruning)
        defense.penalty(step)
        step.task_loss.backward()
        layers = [layer for layer, _, _ in aux.layers(split)]
        assert len(layers) == 2  # both convolutions before the cut
        expected = []
        for layer in layers:
            assert isinstance(layer, nn.Conv2d)
            assert layer.weight.grad is not None
            score = torch.stack([(w * g).sum().abs() for w, g in zip(layer.weight, layer.weight.grad, strict=True)])
            expected.append(set(score.argsort()[:4].tolist()))
        defense.after_step(split, aux)
        for _ in range(2):
            for layer, gone in zip(layers, expected, strict=True):
                assert isinstance(layer, nn.Conv2d)
                assert set((layer.weight.flatten(1).abs().sum(1) == 0).nonzero().flatten().tolist()) == gone
                assert layer.bias is not None
                assert set((layer.bias == 0).nonzero().flatten().tolist()) == gone
            with torch.no_grad():
                for p in split.parameters():
                    p.add_(0.1)
            defense.after_step(split, aux)
        assert sum(defense.notes(split, aux).values()) == 8

    def test_nothing_goes_before_its_time(self) -> None:
        defense = Patrol(0.5, at=0.6, above=4)
        split, step, aux = self.step(defense)
        before = [p.clone() for p in split.parameters()]
        defense.penalty(step)
        step.task_loss.backward()
        defense.after_step(split, aux)
        assert all(torch.equal(a, b) for a, b in zip(before, split.parameters(), strict=True))

    def test_a_share_of_no_filter_is_one_line(self) -> None:
        defense = Patrol()
        with pytest.raises(UsageError, match="raise share"):
            defense.setup(self.built(defense), self.batch(), seeds.generator(0, "setup"))


def test_ssim_is_that_of_scikit_image() -> None:
    rng = seeds.generator(0, "ssim")
    truth = torch.rand(2, 3, 24, 20, generator=rng)
    guess = (truth + 0.2 * torch.randn(2, 3, 24, 20, generator=rng)).clamp(0, 1)
    expected = []
    for a, b in zip(guess.double().numpy(), truth.double().numpy(), strict=True):
        for x, y in zip(a, b, strict=True):
            full = structural_similarity(
                x, y, data_range=1, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, full=True
            )[1]
            expected.append(full[5:-5, 5:-5].mean())
    assert ssim(guess, truth).mean().item() == pytest.approx(float(np.mean(expected)), abs=1e-6)
    assert ssim(truth, truth).mean().item() == pytest.approx(1)


@pytest.mark.parametrize("side", [1, 2, 7])
def test_ssim_of_small_and_flat_pictures_is_finite(side: int) -> None:
    guess = torch.full((2, 1, side, side), 0.3, requires_grad=True)
    value = ssim(guess, torch.full((2, 1, side, side), 0.3)).mean()
    value.backward()
    assert value.item() == pytest.approx(1)
    assert guess.grad is not None
    assert guess.grad.isfinite().all()


@pytest.mark.parametrize("features", [(4, 3, 3), (4, 16, 16), (10,), (5, 6), (3, 40, 40)])
@pytest.mark.parametrize("picture", [(1, 12, 12), (3, 10, 14)])
def test_the_inner_decoder_fits_any_features(features: tuple[int, ...], picture: tuple[int, int, int]) -> None:
    guess = InnerDecoder(features, picture, 8, 1)(torch.randn(2, *features))
    assert guess.shape == (2, *picture)
    assert guess.min() >= 0
    assert guess.max() <= 1


def test_points_have_no_ssim() -> None:
    data = ImageSet(torch.randn(4, 3, 1, 1), torch.tensor([0, 1, 0, 1]), ("a", "b"), pixels=False)
    split = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Linear(4, 2)), "1")
    with pytest.raises(UsageError, match="loss=mse"):
        Adversarial().setup(split, data, seeds.generator(0, "setup"))
    aux = Adversarial(loss="mse", width=8).setup(split, data, seeds.generator(0, "setup"))
    assert isinstance(aux, InnerAttacker)
    assert aux.decoder(split.encode(data.images)).shape == data.images.shape


def _slow_code(z: Tensor, dictionary: Tensor, threshold: float) -> Tensor:
    out = torch.zeros_like(z)
    for n, row in enumerate(z):
        for atom in dictionary:
            response = float(row @ atom)
            out[n] += (max(abs(response) - threshold, 0.0) * (1 if response > 0 else -1)) * atom
    return out


def test_the_tied_layer_is_its_loop_over_atoms() -> None:
    with seeds.ambient(0, "layer"):
        layer, z = TiedSparseLayer(6, 9, 0.3), torch.randn(4, 6)
    assert torch.allclose(layer.dictionary.norm(dim=1), torch.ones(9))
    with torch.no_grad():
        torch.testing.assert_close(layer(z.view(4, 2, 3)).flatten(1), _slow_code(z, layer.dictionary, 0.3))


def test_an_orthogonal_dictionary_without_threshold_changes_nothing() -> None:
    layer = TiedSparseLayer(5, 5, 0.0)
    with torch.no_grad():
        layer.dictionary.copy_(torch.linalg.qr(torch.randn(5, 5, generator=seeds.generator(0, "q"))).Q)
        z = torch.randn(3, 5, generator=seeds.generator(0, "z"))
        torch.testing.assert_close(layer(z), z)


def test_too_many_features_for_a_dictionary_are_one_line() -> None:
    split = SplitModel(nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten(), nn.Linear(3 * 64 * 64, 2)), "0")
    with pytest.raises(UsageError, match="bottleneck"):
        TiedSparse().rebuild(split, torch.zeros(1, 1, 64, 64))


@pytest.mark.parametrize("constant", [0.0, 0.5])
def test_constant_features_give_finite_gradients(constant: float) -> None:
    z = torch.full((4, 2, 4, 4), constant, requires_grad=True)
    x = torch.rand(4, 1, 8, 8, generator=seeds.generator(0, "x"))
    aux = InnerAttacker(InnerDecoder((2, 4, 4), (1, 8, 8), 8, 1), 1e-3)
    scores = torch.zeros(4, 2)
    step = Step(
        x=x, y=torch.zeros(4, dtype=torch.int64), features=z, released=z, scores=scores, task_loss=scores.sum(),
        split=None, aux=aux, epoch=0, epochs=1, learning_rate=0.1, rng=seeds.generator(0, "s"),  # type: ignore[arg-type]
    )  # fmt: skip
    penalty = Adversarial(1, 0.0).penalty(step)
    assert penalty is not None
    assert penalty.isfinite()
    penalty.backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize(
    "made",
    [
        lambda: Adversarial(-1),
        lambda: Adversarial(threshold=1.0),
        lambda: Adversarial(steps=0),
        lambda: Adversarial(loss="l1"),  # type: ignore[arg-type]
        lambda: TiedSparse(-1),
        lambda: TiedSparse(atoms=0),
        lambda: TiedSparse(place="within"),  # type: ignore[arg-type]
        lambda: Patrol(1.0),
        lambda: Patrol(at=1.0),
        lambda: Patrol(above=0),
    ],
)
def test_bad_fields_are_refused(made: Callable[[], Defense]) -> None:
    with pytest.raises(ValueError, match="must be"):
        made()
