"""Block inversion against closed forms and dense linear algebra; the whole attack on residual targets."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks.e2e_lbfgs import EndToEnd
from leakscope.attacks.embedding import EmbeddingInversion
from leakscope.attacks.peel import Peel
from leakscope.attacks.peel_exact import PeelExact, block_inputs
from leakscope.attacks.peeling.chain import Block
from leakscope.attacks.peeling.invert import injectivity, invert, solve_pattern
from leakscope.attacks.peeling.krylov import Anderson, cgls, gmres
from leakscope.attacks.peeling.pieces import IDENTITY, Affine, Products, Rectifier, affine
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed, Prepared, Reconstruction
from leakscope.core.defense import Defense
from leakscope.core.errors import UsageError
from leakscope.core.model import Normalize, SplitModel
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.models.preact import PreactResNetArchitecture
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import CLASSES, CPU, image_set, smooth_images

SHAPE = (1, 16, 16)
RELU = Rectifier(torch.zeros((), dtype=torch.float64))


def convolution(inputs: int, outputs: int, side: int, *, kernel: int = 3, stride: int = 1, gain: float = 1.0) -> Affine:
    """A convolution with weights of variance gain²/fan_in."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False, dtype=torch.float64)
    rng = seeds.generator(0, "weights", inputs, outputs, kernel)
    fan_in = inputs * kernel**2
    layer.weight.data = gain / math.sqrt(fan_in) * torch.randn(layer.weight.shape, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        return affine([(layer, layer)], torch.zeros(1, inputs, side, side, dtype=torch.float64))


def residual(
    channels: int, side: int, *, gain: float, outputs: int | None = None, stride: int = 1, act: Rectifier = RELU
) -> Block:
    wide = outputs or channels
    first = convolution(channels, wide, side, stride=stride, gain=gain)
    shape = (channels, side, side), (wide, side // stride, side // stride)
    second = convolution(wide, wide, side // stride, gain=gain)
    same = stride == 1 and wide == channels
    shortcut = IDENTITY if same else convolution(channels, wide, side, kernel=1, stride=stride)
    return Block("block", (first, act, second), shortcut, None, *shape)


def sample(block: Block, count: int = 3) -> Tensor:
    return torch.randn(count, *block.inputs, generator=seeds.generator(0, "sample"), dtype=torch.float64)


def dense_jacobian(block: Block, x: Tensor) -> Tensor:
    """By autograd through the plain computation, not by the block's own products."""
    whole = torch.autograd.functional.jacobian(lambda flat: block(flat.view(1, *block.inputs)).flatten(), x.flatten())
    assert isinstance(whole, Tensor)
    return whole


def error(guess: Tensor, truth: Tensor) -> float:
    return float((guess - truth).norm() / truth.norm())


class TestOneBlock:
    def test_contractive_by_fixed_point_to_machine_precision(self) -> None:
        block = residual(4, 8, gain=0.4)
        x = sample(block)
        found = invert(block, block(x), tolerance=1e-15)
        assert found.method == "fixed point"
        assert error(found.x, x) < 1e-14

    @pytest.mark.parametrize("slope", [0.0, 0.25])
    def test_not_contractive_but_invertible(self, slope: float) -> None:
        act = Rectifier(torch.full((1, 4, 1, 1), slope, dtype=torch.float64))
        block = residual(4, 8, gain=1.0, act=act)
        x = sample(block)
        found = invert(block, block(x), tolerance=1e-13)
        assert found.fit.max() < 1e-12
        assert error(found.x, x) < 1e-6

    def test_widening(self) -> None:
        block = residual(4, 8, gain=0.7, outputs=8)
        x = sample(block)
        assert error(invert(block, block(x), tolerance=1e-13).x, x) < 1e-6

    def test_a_layer_without_shortcut(self) -> None:
        """y = prelu(W x) with more outputs than inputs."""
        act = Rectifier(torch.tensor(0.3, dtype=torch.float64))
        block = Block("plain", (convolution(4, 8, 4),), None, act, (4, 4, 4), (8, 4, 4))
        x = sample(block)
        assert error(invert(block, block(x), tolerance=1e-13).x, x) < 1e-6

    @pytest.mark.parametrize("slope", [0.1, 0.3, 0.5])
    def test_two_layers_without_shortcut(self, slope: float) -> None:
        """y = W₂ prelu(W₁ x), each layer wider than the one before: nothing contracts, and nothing is lost."""
        act = Rectifier(torch.tensor(slope, dtype=torch.float64))
        branch = (convolution(4, 8, 6), act, convolution(8, 12, 6))
        block = Block("two layers", branch, None, None, (4, 6, 6), (12, 6, 6))
        x = sample(block)
        assert error(invert(block, block(x), tolerance=1e-13).x, x) < 1e-6

    def test_leaky_activation_behind_the_sum_is_undone(self) -> None:
        block = residual(4, 8, gain=0.4)
        block.outer = Rectifier(torch.tensor(0.1, dtype=torch.float64))
        x = sample(block)
        assert error(invert(block, block(x), tolerance=1e-14).x, x) < 1e-12

    def test_relu_behind_the_sum_is_explained(self) -> None:
        """Half of the values are lost: many inputs explain y, and one of them is found."""
        block = residual(4, 8, gain=0.4)
        block.outer = RELU
        y = block(sample(block))
        found = invert(block, y, tolerance=1e-12)
        torch.testing.assert_close(block(found.x), y, rtol=1e-6, atol=1e-6)

    def test_each_row_is_solved_as_if_alone(self) -> None:
        block = residual(4, 8, gain=0.8)
        y = block(sample(block) * torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64).view(-1, 1, 1, 1))
        together = invert(block, y, tolerance=1e-13).x
        alone = torch.cat([invert(block, row, tolerance=1e-13).x for row in y.split(1)])
        torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-8)

    def test_noise_is_not_fitted(self) -> None:
        """Regularised for the noise level, the inverse is nearer the truth than the exact one."""
        block = residual(2, 6, gain=1.6)
        x = sample(block)
        sigma = 0.5
        noise = torch.randn(x.shape, generator=seeds.generator(0, "noise"), dtype=x.dtype)
        y = block(x) + sigma * noise
        exact, regular = invert(block, y, tolerance=1e-10), invert(block, y, tolerance=1e-10, noise=sigma)
        assert error(regular.x, x) < error(exact.x, x)
        assert regular.fit.min() > exact.fit.max()


class TestAgainstDenseAlgebra:
    @pytest.mark.parametrize(
        "block",
        [residual(3, 4, gain=1.5), residual(3, 4, gain=1.0, outputs=6), residual(4, 4, gain=1.0, outputs=8, stride=2)],
        ids=["square", "widening", "strided"],
    )
    def test_a_fixed_pattern_is_a_least_squares_problem(self, block: Block) -> None:
        x, elsewhere = sample(block, 1), sample(block, 2)[1:]
        y = block(x) + 0.1  # not in the range
        jacobian = dense_jacobian(block, elsewhere)
        rhs = (y - block(elsewhere)).flatten() + jacobian @ elsewhere.flatten()
        wanted = torch.linalg.lstsq(jacobian, rhs[:, None], driver="gelsd").solution.flatten()
        found = solve_pattern(block, elsewhere, y, tolerance=1e-14)
        torch.testing.assert_close(found.flatten(), wanted, rtol=1e-6, atol=1e-8)

    def test_where_dimensions_are_lost_the_least_norm_input_is_found(self) -> None:
        act = Rectifier(torch.tensor(0.8, dtype=torch.float64))
        block = residual(4, 4, gain=1.0, outputs=8, stride=2, act=act)
        y = block(sample(block, 1))
        found = invert(block, y, tolerance=1e-12)
        assert found.fit.max() < 1e-8
        jacobian = dense_jacobian(block, found.x)
        rhs = (y - block(found.x)).flatten() + jacobian @ found.x.flatten()
        least = torch.linalg.lstsq(jacobian, rhs[:, None], driver="gelsd").solution
        torch.testing.assert_close(found.x.flatten(), least.flatten(), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("slope", [0.2, 0.5])
    def test_between_patterns_the_least_norm_input_is_still_an_exact_and_short_one(self, slope: float) -> None:
        """A stronger kink may leave no pattern whose own least-norm input has that pattern; most rows have one."""
        act = Rectifier(torch.tensor(slope, dtype=torch.float64))
        block = residual(4, 4, gain=1.0, outputs=8, stride=2, act=act)
        x = sample(block, 4)
        y = block(x)
        found = invert(block, y, tolerance=1e-12)
        assert found.fit.max() < 1e-8
        assert (found.x.flatten(1).norm(dim=1) < x.flatten(1).norm(dim=1)).all()
        settled = 0
        for row, target in zip(found.x.split(1), y.split(1), strict=True):
            jacobian = dense_jacobian(block, row)
            rhs = (target - block(row)).flatten() + jacobian @ row.flatten()
            least = torch.linalg.lstsq(jacobian, rhs[:, None], driver="gelsd").solution.flatten()
            settled += bool((row.flatten() - least).norm() < 1e-6 * least.norm())
        assert settled >= 3

    @pytest.mark.parametrize(
        ("channels", "outputs", "stride"),
        [(4, 4, 1), (4, 8, 1), (4, 8, 2), (4, 16, 2), (4, 4, 2)],
        ids=["identity", "C→2C", "s2 C→2C", "s2 C→4C", "s2 C→C"],
    )
    def test_reported_rank_is_that_of_an_svd(self, channels: int, outputs: int, stride: int) -> None:
        block = residual(channels, 8, gain=1.0, outputs=outputs, stride=stride)
        x = sample(block, 1)
        singular = torch.linalg.svdvals(dense_jacobian(block, x))
        rank = int((singular > 256 * torch.finfo(x.dtype).eps * singular[0]).sum())
        report = injectivity(block, x, dense_limit=1000)
        assert report.rank == rank
        assert report.deficiency == channels * 64 - rank
        assert rank <= report.bound
        assert injectivity(block, x, dense_limit=0).rank is None

    def test_cgls_and_gmres_solve_linear_systems(self) -> None:
        rng = seeds.generator(0, "systems")
        matrix = torch.randn(2, 12, 12, generator=rng, dtype=torch.float64) + 5 * torch.eye(12, dtype=torch.float64)
        rhs = torch.randn(2, 12, generator=rng, dtype=torch.float64)
        wanted = torch.linalg.solve(matrix, rhs)
        products = Products(lambda v: (matrix @ v[..., None])[..., 0], lambda u: (matrix.mT @ u[..., None])[..., 0])
        torch.testing.assert_close(gmres(products.forward, rhs, iterations=12, tolerance=1e-13), wanted)
        torch.testing.assert_close(cgls(products, rhs, iterations=60, tolerance=1e-13), wanted)
        # min ‖Ad − b‖² + μ‖o + d‖² by its normal equations
        offset, damping = torch.randn(2, 12, generator=rng, dtype=torch.float64), 0.7
        normal = matrix.mT @ matrix + damping * torch.eye(12, dtype=torch.float64)
        ridge = torch.linalg.solve(normal, products.adjoint(rhs) - damping * offset)
        found = cgls(products, rhs, iterations=60, tolerance=1e-13, damping=damping, offset=offset)
        torch.testing.assert_close(found, ridge)

    def test_anderson_needs_fewer_steps_than_the_plain_iteration(self) -> None:
        rng = seeds.generator(0, "anderson")
        matrix = torch.randn(8, 8, generator=rng, dtype=torch.float64)
        matrix = 0.95 * matrix / torch.linalg.matrix_norm(matrix, 2)
        mixing, mixed, plain = (
            Anderson(8),
            torch.zeros(1, 8, dtype=torch.float64),
            torch.zeros(1, 8, dtype=torch.float64),
        )
        for _ in range(12):
            mixed = mixing.next(mixed, 1 + mixed @ matrix - mixed)
            plain = 1 + plain @ matrix
        wanted = torch.linalg.solve(torch.eye(8, dtype=torch.float64) - matrix.T, torch.ones(8, dtype=torch.float64))
        assert (mixed[0] - wanted).norm() < 1e-6 * (plain[0] - wanted).norm()


def residual_split(defense: Defense | None = None, *, device: torch.device = CPU, **settings: object) -> SplitModel:
    chosen = {"width": 4, "strided": False, "growth": (2, 1, 1)} | settings
    with seeds.ambient(0, "residual"):
        model = PreactResNetArchitecture(**chosen).build(SHAPE, CLASSES)  # type: ignore[arg-type]
    return SplitModel(model, "layer2.1", normalize=Normalize((0.5,), (0.25,)), defense=defense).eval().to(device)


def residual_view(
    access: frozenset[Access], *, defense: Defense | None = None, device: torch.device = CPU, **settings: object
) -> View:
    target = residual_split(defense, device=device, **settings)
    public = image_set(16, "public")
    rng = seeds.generator(0, "oracle", device=device)
    return grant(target, ThreatModel(access), public, rng, classes=CLASSES, device=device)


class ResidualContract(AttackContract):
    """The contract, on a small residual target."""

    @pytest.fixture(autouse=True)
    def residual_target(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("leakscope.testing.attacks.small_split", residual_split)
        monkeypatch.setattr("leakscope.testing.attacks.small_view", residual_view)


class TestPeelExactContract(ResidualContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return PeelExact(dense_rank_limit=0)


class TestPeelContract(ResidualContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return Peel(
            steps=60, learning_rate=0.05, complementarity=1, consistency=1, shallow=EmbeddingInversion(steps=40)
        )


class TestEndToEndContract(ResidualContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return EndToEnd(iterations=30)


class TestEmbeddingContract(ResidualContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return EmbeddingInversion(steps=40, learning_rate=0.2)


WHITE = frozenset({Access.ENCODER, Access.FEATURES})


def attacked(attack: Attack, truth: Tensor, *, defense: Defense | None = None, **settings: Any) -> Reconstruction:
    view = residual_view(WHITE, defense=defense, **settings)
    with torch.no_grad():
        seen = residual_split(defense, **settings).release(truth, seeds.generator(0, "victims"))
    return attack.reconstruct(view, Prepared(), Observed(seen), seeds.generator(0, "attack"))


def psnr(result: Reconstruction, truth: Tensor) -> float:
    return float(-10 * torch.log10((result.images - truth).square().flatten(1).mean(1)).mean())


class TestWholeNetworks:
    def test_without_stride_pictures_come_back_to_the_last_digits(self) -> None:
        truth = smooth_images(3, "victims")
        result = attacked(PeelExact(), truth)
        assert psnr(result, truth) > 100
        assert result.diagnostics.diverged == 0
        assert result.diagnostics.lost_dimensions == {}
        assert set(result.diagnostics.details["blocks"]) == {"layer1.0", "layer1.1", "layer2.0", "layer2.1", "shallow"}

    def test_published_peel_finds_the_picture_less_exactly(self) -> None:
        truth = smooth_images(1, "victims")
        result = attacked(Peel(steps=300, cosine=True, complementarity=10, consistency=10), truth)
        assert 15 < psnr(result, truth) < 100
        assert result.diagnostics.curve[-1] < 0.1 * result.diagnostics.curve[0]

    def test_the_sign_the_paper_prints_has_another_minimum(self) -> None:
        """Our penalty is zero at the truth: W_1 x − p + n = 0; the printed one is not."""
        from leakscope.attacks.peel import _Penalty

        block = residual(4, 8, gain=0.4)
        x = sample(block, 2)
        problem = _Penalty(block, block(x), 1000.0, 1000.0)
        inner = block.branch[0](x)
        for variable, value in zip(problem.variables, (x, inner.relu(), (-inner).relu()), strict=True):
            variable.copy_(value)
        measured = problem.set_gradients(measure=True)
        assert measured is not None
        assert measured.max() < 1e-18

    @pytest.mark.parametrize("outer", [None, RELU], ids=["bare sum", "ReLU behind the sum"])
    @pytest.mark.parametrize("slope", [0.0, 0.2])
    def test_closed_form_gradients_are_those_of_autograd(self, slope: float, outer: Rectifier | None) -> None:
        from leakscope.attacks.peel import _Penalty

        act = Rectifier(torch.tensor(slope, dtype=torch.float64))
        block = residual(3, 4, gain=1.0, outputs=6, act=act)
        third = convolution(6, 6, 4)
        block.branch, block.outer = (*block.branch, act, third), outer  # a bottleneck: two splits
        y = block(sample(block, 2))
        problem = _Penalty(block, y, 3.0, 5.0)
        rng = seeds.generator(0, "variables")
        for variable in problem.variables:
            variable.copy_(torch.rand(variable.shape, generator=rng, dtype=torch.float64))
        problem.set_gradients(measure=False)
        gradients = [variable.grad for variable in problem.variables]
        x, *rest = leaves = [variable.detach().clone().requires_grad_() for variable in problem.variables]
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        first, _, second, _, _ = block.branch
        reached = [first(x), second(pairs[0][0] - slope * pairs[0][1]), third(pairs[1][0] - slope * pairs[1][1])]
        assert block.shortcut is not None
        reached[2] = reached[2] + block.shortcut(x)
        last = y - (reached[2] if outer is None else pairs[2][0])
        value = last.square().sum()
        for z, (p, n) in zip(reached, pairs, strict=False):
            value = value + 3.0 * (p * n).flatten(1).sum(1).square().sum() + 5.0 * (z - p + n).square().sum()
        for ours, theirs in zip(gradients, torch.autograd.grad(value, leaves), strict=True):
            assert ours is not None
            torch.testing.assert_close(ours, theirs)

    def test_stride_is_reported_and_broken_end_to_end(self) -> None:
        truth = smooth_images(2, "victims")
        peeled = attacked(PeelExact(), truth, strided=True)
        assert peeled.diagnostics.lost_dimensions["layer2.0"] >= 4 * 256 // 2
        whole = attacked(EndToEnd(iterations=90), truth, strided=True)
        assert psnr(whole, truth) > 30 > psnr(peeled, truth)
        assert whole.diagnostics.details["peeled"] == ["layer2.1"]
        assert whole.diagnostics.diverged == 0
        assert whole.diagnostics.converged
        for few in (1, 8):
            assert not attacked(EndToEnd(iterations=few, gauss_newton=0), truth, strided=True).diagnostics.converged

    def test_noise_is_known_and_not_fitted(self) -> None:
        class Noise(Defense):
            def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
                return z + 0.05 * torch.randn(z.shape, generator=rng)

        truth = smooth_images(2, "victims")
        for attack in (PeelExact(dense_rank_limit=0, shallow_iterations=60), EndToEnd(iterations=60)):
            knowing = attacked(attack, truth, defense=Noise())
            assert knowing.diagnostics.details["release_error"] == pytest.approx(0.05, rel=0.1)
            assert knowing.diagnostics.diverged == 0
            with torch.no_grad():
                seen = residual_split(Noise()).release(truth, seeds.generator(0, "victims"))
            unaware = attack.reconstruct(residual_view(WHITE), Prepared(), Observed(seen), seeds.generator(0, "attack"))
            assert psnr(knowing, truth) > psnr(unaware, truth)

    def test_features_that_no_picture_has_are_flagged_with_the_block(self) -> None:
        view = residual_view(WHITE)
        seen = torch.full((1, 8, 16, 16), torch.nan)
        for attack in (
            PeelExact(dense_rank_limit=0),
            Peel(steps=5),
            EndToEnd(iterations=5),
            EmbeddingInversion(steps=5),
        ):
            result = attack.reconstruct(view, Prepared(), Observed(seen), seeds.generator(0, "attack"))
            assert result.images.isfinite().all()
            assert result.diagnostics.diverged == 1
            json.dumps(result.diagnostics.details, allow_nan=False)
        exact = PeelExact(dense_rank_limit=0).reconstruct(view, Prepared(), Observed(seen), seeds.generator(0, "a"))
        assert exact.diagnostics.diverged_blocks[0] == "layer2.1"

    def test_what_blocks_read_is_recovered_and_measured(self) -> None:
        truth, view, split = smooth_images(2, "victims"), residual_view(WHITE), residual_split()
        with torch.no_grad():
            seen = Observed(split.encode(truth))
        true = block_inputs(split, truth)
        exact = PeelExact(dense_rank_limit=0).block_inputs(view, seen, seeds.generator(0, "a"))
        tuned = Peel(steps=300, cosine=True, complementarity=10, consistency=10)
        slow = tuned.block_inputs(view, seen, seeds.generator(0, "a"))
        assert list(true) == list(reversed(exact)) == list(reversed(slow))
        for name, value in true.items():
            assert error(exact[name], value) < 1e-4
            assert error(slow[name], value) < 0.5

    def test_an_unfinished_solve_says_which_blocks_it_leaves_unexplained(self) -> None:
        truth = smooth_images(1, "victims")
        stopped = attacked(Peel(steps=5, shallow=EmbeddingInversion(steps=5)), truth)
        assert stopped.diagnostics.unexplained == 1
        assert stopped.diagnostics.unexplained_blocks[0] == "layer2.1"
        whole = attacked(EndToEnd(iterations=1, peel_trailing=False, gauss_newton=0), truth)
        assert whole.diagnostics.unexplained == 1
        assert attacked(PeelExact(dense_rank_limit=0), truth).diagnostics.unexplained == 0

    def test_any_network_gets_an_answer(self) -> None:
        """A network may fail in any way while it is read: that is a reason, not an error."""

        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cut, self.head = nn.Flatten(), nn.LazyLinear(5)

            def forward(self, x: Tensor) -> Tensor:
                if float(x.sum()) > 0:
                    raise RuntimeError("two\nlines")
                scores: Tensor = self.head(self.cut(x))
                return scores

        for attack in (PeelExact(), Peel(), Peel(plain_layers=True)):
            reason = attack.unsuited(SplitModel(Odd(), "cut"), SHAPE)
            assert reason is not None
            assert "\n" not in reason

    def test_features_of_another_shape_are_one_line(self) -> None:
        for attack in (PeelExact(), Peel(), EndToEnd(), EmbeddingInversion()):
            with pytest.raises(UsageError, match="8×4×4, the encoder gives 8×16×16"):
                attack.reconstruct(
                    residual_view(WHITE), Prepared(), Observed(torch.zeros(1, 8, 4, 4)), seeds.generator(0, "a")
                )

    def test_published_peel_takes_plain_layers_only_when_told(self) -> None:
        from leakscope.testing.synthetic import small_split, small_view

        truth = smooth_images(1, "victims")
        with torch.no_grad():
            seen = Observed(small_split().encode(truth))
        with pytest.raises(UsageError, match="plain_layers=true"):
            Peel().reconstruct(small_view(WHITE), Prepared(), seen, seeds.generator(0, "a"))
        attack = Peel(steps=20, plain_layers=True, shallow=EmbeddingInversion(steps=20))
        assert attack.reconstruct(small_view(WHITE), Prepared(), seen, seeds.generator(0, "a")).images.isfinite().all()


def test_rows_can_leave_before_the_first_mixed_step() -> None:
    """A row that converges in the very step in which mixing begins was an IndexError."""
    x = torch.arange(8.0).view(4, 2)
    mixing = Anderson(3)
    mixing.keep(torch.tensor([True, False, True, True]))
    torch.testing.assert_close(mixing.next(x[:3], 0.5 * x[:3]), 1.5 * x[:3])
