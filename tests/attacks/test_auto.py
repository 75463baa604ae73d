"""`auto` against closed forms, against the attacks it stands for, and on releases that hide from a plain reader."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks._correction import Size
from leakscope.attacks._linear import fit
from leakscope.attacks._price import price
from leakscope.attacks._sights import Reader
from leakscope.attacks.auto import Auto
from leakscope.attacks.ridge import Ridge
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import CLASSES, SmallNet, image_set, small_split, small_view, smooth_images

CPU = torch.device("cpu")
QUICK = Auto(effort="quick")


class TestAuto(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return QUICK


class Noise(Defense):
    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return z + self.sigma * torch.randn(z.shape, generator=rng)


class OneLayer(nn.Module):
    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        self.layer.weight.data = matrix
        self.head = nn.Linear(matrix.shape[0], 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(self.flat(x)))
        return scores


def view_of(split: SplitModel, public: ImageSet, access: frozenset[Access] = frozenset(Access)) -> View:
    return grant(split, ThreatModel(access), public, seeds.generator(0, "q"), classes=CLASSES, device=CPU)


def rebuilt(attack: Attack, view: View, features: Tensor) -> Tensor:
    prepared = attack.prepare(view, seeds.generator(0, "p"))
    return attack.reconstruct(view, prepared, Observed(features), seeds.generator(0, "r")).images


def share(guess: Tensor, truth: Tensor, mean: Tensor) -> float:
    """Of the variance around the mean picture, what was recovered."""
    return 1 - float((guess - truth).square().sum() / (truth - mean).square().sum())


@pytest.mark.parametrize(
    ("sigma", "access"), [(0.3, frozenset(Access)), (1.5, frozenset({Access.FEATURES, Access.QUERY}))]
)
def test_a_linear_gaussian_world_is_solved_up_to_its_posterior(sigma: float, access: frozenset[Access]) -> None:
    """x ~ N(0, S), z = Ax + σn: nobody errs less than tr (S⁻¹ + AᵀA/σ²)⁻¹ in expectation; `auto` errs no more."""
    rng = seeds.generator(0, "gaussian-world")
    pixels, features, many = 8, 6, 500
    root = torch.randn(pixels, pixels, generator=rng) / 3
    matrix = torch.randn(features, pixels, generator=rng)
    x = torch.randn(many + 400, pixels, generator=rng) @ root
    public = ImageSet(x[:many, :, None, None].contiguous(), torch.zeros(many, dtype=torch.int64), ("a",), pixels=False)
    split = SplitModel(OneLayer(matrix), "layer", defense=Noise(sigma)).eval()
    truth = x[many:, :, None, None]
    with torch.no_grad():
        seen = split.release(truth, seeds.generator(0, "v"))
    covariance = (root.T @ root).double()
    posterior = torch.linalg.inv(torch.linalg.inv(covariance) + (matrix.T @ matrix).double() / sigma**2)
    best = 1 - float(posterior.trace() / covariance.trace())
    found = share(rebuilt(QUICK, view_of(split, public, access), seen), truth, torch.zeros(()))
    assert found == pytest.approx(best, abs=0.03)


def test_an_orthogonal_encoder_is_inverted() -> None:
    rng = seeds.generator(0, "orthogonal")
    matrix, _ = torch.linalg.qr(torch.randn(64, 64, generator=rng))
    split = SplitModel(OneLayer(matrix), "layer").eval()
    truth = smooth_images(8, "orthogonal", (1, 8, 8))
    view = view_of(split, image_set(200, "public", (1, 8, 8)))
    started = time.process_time()
    found = share(rebuilt(QUICK, view, split.release(truth)), truth, view.public.images.mean(0))
    assert found > 0.9999
    assert time.process_time() - started < 10


def test_it_rebuilds_no_less_than_ridge() -> None:
    truth = smooth_images(16, "beats-ridge")
    split = small_split(Noise(0.3))
    with torch.no_grad():
        seen = split.release(truth, seeds.generator(0, "v"))
    view = view_of(split, image_set(160, "public"))
    mean = view.public.images.mean(0)
    assert share(rebuilt(QUICK, view, seen), truth, mean) >= share(rebuilt(Ridge(), view, seen), truth, mean) - 0.005


def test_the_left_out_answer_is_that_of_a_fit_without_the_picture() -> None:
    rng = seeds.generator(0, "offsets")
    z = torch.randn(20, 6, generator=rng, dtype=torch.float64)
    x = torch.randn(20, 3, generator=rng)
    fitted = fit(z, x, 1, rng)
    level = float(torch.linalg.eigvalsh((z - z.mean(0)).T @ (z - z.mean(0))).mean())
    others = torch.arange(20) != 4
    center, mean = z[others].mean(0), x[others].double().mean(0)
    rows = z[others] - center
    weights = torch.linalg.solve(
        rows.T @ rows + fitted.strength * level * torch.eye(6, dtype=torch.float64), rows.T @ (x[others] - mean)
    )
    expected = mean + (z[4] - center) @ weights
    torch.testing.assert_close((fitted.linear(z) + fitted.offsets)[4], expected.float(), atol=1e-5, rtol=1e-4)


class Obfuscated(nn.Module):
    """The small network, whose client hides its features and whose server's first layer finds them again."""

    def __init__(self, hide: nn.Module, find: nn.Module) -> None:
        super().__init__()
        with seeds.ambient(0, "small-split"):
            network = SmallNet()
        self.client = nn.Sequential(network.features, hide)
        self.find = find
        self.rest = network.rest

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.rest(self.find(self.client(x)))
        return scores


class Function(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


def _hash(z: Tensor) -> Tensor:
    """Numbers in [−1, 1] that depend on every digit of a picture's features."""
    return (z.double().flatten(1).sum(1, keepdim=True) * 1e5 * torch.arange(1, 9)).sin().float()


def _loud_row(z: Tensor) -> Tensor:
    row = 1e6 * _hash(z)[:, None, None, :].expand(-1, z.shape[1], 1, -1)
    return torch.cat((z, row), 2)


def _hidden_digits(z: Tensor) -> Tensor:
    grid = (1e4 * _hash(z)).round()[:, :, None, None]
    return (grid + (0.02 * z).clamp(-0.45, 0.45).double()).float()


def _masked(z: Tensor) -> Tensor:
    seed = _hash(z)[:, :1, None, None].expand(-1, z.shape[1], z.shape[2], 1)
    return torch.cat((z + _noise_of(seed), seed), 3)


def _noise_of(seed: Tensor) -> Tensor:
    places = torch.arange(seed.shape[1] * seed.shape[2] * 8).view(1, seed.shape[1], seed.shape[2], 8)
    return 30 * (seed * 1e3 * (places + 1)).sin()


HIDING: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "a row of loud noise": (_loud_row, lambda z: z[:, :, :-1]),
    "low-order digits": (_hidden_digits, lambda z: (z - z.round()) / 0.02),
    "noise whose seed is sent along": (_masked, lambda z: z[..., :8] - _noise_of(z[..., 8:])),
    "a shuffled batch": (lambda z: z.roll(3, 0), lambda z: z.roll(-3, 0)),
}


@pytest.mark.parametrize("name", HIDING)
def test_what_the_server_finds_the_attacker_finds(name: str) -> None:
    hide, find = HIDING[name]
    split = SplitModel(Obfuscated(Function(hide), Function(find)), "client").eval()
    truth = smooth_images(40, "hiding")
    with torch.no_grad():
        seen = split.release(truth)
        torch.testing.assert_close(split(truth), small_split()(truth), atol=2e-2, rtol=1e-2)
    view = view_of(split, image_set(200, "public"))
    assert share(rebuilt(QUICK, view, seen), truth, view.public.images.mean(0)) > 0.85


def test_a_layer_that_runs_in_some_batches_only_is_not_looked_through() -> None:
    """One such layer, of batches of 256 and not of the 254 that were left, ended an audit in an error of shapes."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Softsign()

        def forward(self, z: Tensor) -> Tensor:
            out: Tensor = self.layer(z) if len(z).bit_count() == 1 else z
            return out

    model = small_split().model
    model.rest = nn.Sequential(Sometimes(), model.get_submodule("rest"))
    split = SplitModel(model, "features").eval()
    prepared = QUICK.prepare(view_of(split, image_set(600, "public")), seeds.generator(0, "p"))
    assert not any("layer" in name for name in prepared.diagnostics.details["sight_errors"])


def test_the_encoder_alone_will_do() -> None:
    """No queries granted; a copy of the features ten thousand times smaller beside the scores."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = small_split().model

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat((self.whole(x), 1e-4 * self.whole.features(x).flatten(1)), 1)  # type: ignore[operator]

    split = SplitModel(nn.Sequential(Beside(), Function(lambda z: z[:, :CLASSES])), "0").eval()
    truth = smooth_images(12, "beside")
    view = view_of(split, image_set(200, "public"), frozenset({Access.FEATURES, Access.ENCODER}))
    assert share(rebuilt(QUICK, view, split.release(truth).detach()), truth, view.public.images.mean(0)) > 0.9
    assert view.budget.spent == 0


def test_more_observations_of_a_picture_rebuild_more() -> None:
    truth, split = smooth_images(24, "repeats"), small_split(Noise(0.5))
    rng = seeds.generator(0, "v")
    with torch.no_grad():
        first, *others = (split.release(truth, rng) for _ in range(9))
    view = view_of(split, image_set(200, "public"))
    mean = view.public.images.mean(0)
    prepared = QUICK.prepare(view, seeds.generator(0, "p"))
    found = [
        share(QUICK.reconstruct(view, prepared, seen, seeds.generator(0, "r")).images, truth, mean)
        for seen in (Observed(first), Observed(first, repeats=torch.stack(others)))
    ]
    assert found[1] > found[0] + 0.02


def test_it_says_how_far_it_came_and_when_it_was_stopped() -> None:
    prepared = QUICK.prepare(small_view(frozenset(Access)), seeds.generator(0, "p"))
    seconds, leaks = zip(*prepared.diagnostics.anytime, strict=True)
    assert list(seconds) == sorted(seconds)
    assert list(leaks) == sorted(leaks)
    assert list(prepared.diagnostics.curve) == sorted(prepared.diagnostics.curve, reverse=True)
    hurried = Auto(seconds=1e-3).prepare(small_view(frozenset(Access)), seeds.generator(0, "p"))
    assert hurried.diagnostics.converged is False
    assert len(hurried.diagnostics.anytime) < len(prepared.diagnostics.anytime)


def test_features_are_scaled_one_by_one() -> None:
    z = torch.randn(50, 3, 4, generator=seeds.generator(0, "z")) * torch.tensor([1e6, 1.0, 1e-4, 0.0]) + 7
    columns = Reader.of(z.double()).columns(z.double())
    assert (columns.view(50, 3, 4)[..., 3] == 0).all()
    for number, column in enumerate(z.double().flatten(1).T):
        if number % 4 != 3:
            away = column - sum(column) / 50
            slow = max((sum(a * a for a in away) / 50) ** 0.5, max(abs(a) for a in away) / 3)
            torch.testing.assert_close(columns[:, number], away / slow, rtol=0.01, atol=1e-3)


def test_a_feature_that_was_hardly_ever_active_is_not_blown_up() -> None:
    z = torch.zeros(100, 2, dtype=torch.float64)
    z[:, 0] = torch.arange(100) / 100
    z[7, 1] = 1e-3
    victim = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
    assert Reader.of(z).columns(victim).abs().max() <= 6


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((4, 7, 7), (1, 28, 28)),
        ((17, 6), (3, 20, 12)),
        ((9,), (1, 8, 8)),
        ((5, 28, 16), (1, 28, 28)),
        ((8,), (8, 1, 1)),
    ],
)
def test_a_correction_begins_at_zero(shape: tuple[int, ...], image: tuple[int, int, int]) -> None:
    """Maps, tokens, vectors, maps with mixed rows, points: before training the linear picture stands as it is."""
    linear = torch.rand(2, *image)
    change = Size(16, 1).build(shape, image, 0)(torch.randn(2, *shape), linear)
    assert change.shape == linear.shape
    assert (change == 0).all()


def test_time_must_be_positive() -> None:
    with pytest.raises(ValueError, match="seconds"):
        Auto(seconds=0)


def test_a_network_reads_a_channel_alike_at_every_place() -> None:
    """Each channel by its own mean and deviation, all places together; a loud row by itself."""
    z = torch.randn(60, 2, 5, 4, generator=seeds.generator(0, "z")) * torch.tensor([1.0, 50.0]).view(1, 2, 1, 1) + 3
    expected = (z - z.mean((0, 2, 3), keepdim=True)) / z.std((0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(Reader.by_channel(z)(z), expected.clamp(-6, 6), rtol=1e-4, atol=1e-4)
    loud = z.clone()
    loud[:, :, 4] *= 1e6
    front = Reader.by_channel(loud)(loud)
    quiet = z[:, :, :4]
    alone = (quiet - quiet.mean((0, 2, 3), keepdim=True)) / quiet.std((0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(front[:, :, :4], alone.clamp(-6, 6), rtol=1e-4, atol=1e-4)
    assert front[:, :, 4].abs().max() <= 3.001


def test_tokens_are_read_by_their_features() -> None:
    z = torch.randn(60, 9, 3, generator=seeds.generator(0, "t")) * torch.tensor([1.0, 20.0, 0.1]) - 1
    expected = (z - z.mean((0, 1))) / z.std((0, 1), correction=0)
    torch.testing.assert_close(Reader.by_channel(z)(z), expected.clamp(-6, 6), rtol=1e-4, atol=1e-4)


def test_a_price_is_counted() -> None:
    """A product of n×n matrices: 2n³ multiplications and additions, n² numbers, one call; twice the work, twice it."""
    a = torch.randn(50, 50)
    assert price(lambda: a @ a) == pytest.approx(4e-11 * 2 * 50**3 + 1e-9 * 50**2 + 4e-6)
    assert price(lambda: (a @ a, a @ a)) == pytest.approx(2 * price(lambda: a @ a))


def test_the_same_seed_gives_the_same_pictures() -> None:
    truth, split = smooth_images(6, "same"), small_split(Noise(0.3))
    with torch.no_grad():
        seen = split.release(truth, seeds.generator(0, "v"))
    first, second = (rebuilt(QUICK, view_of(split, image_set(120, "public")), seen) for _ in range(2))
    assert torch.equal(first, second)
