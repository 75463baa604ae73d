"""Reading sparse codes by their dictionaries: the contract, exact answers, and where it does not suit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks._affine import Affine, fit_affine
from leakscope.attacks.analytic_sparse import AnalyticSparse, _fit_pictures, _statistics, _trust
from leakscope.attacks.ridge import Ridge
from leakscope.attacks.search import Search
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.defense import Defense
from leakscope.core.model import SplitModel
from leakscope.core.threat import ThreatModel, View, grant
from leakscope.defenses.gaussian import Gaussian
from leakscope.sparse import Implicit, SparseCoding
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import CLASSES, CPU, SHAPE, image_set, smooth_images


class TestAnalyticSparse(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return AnalyticSparse()


def split_of(*layers: nn.Module, cut: str, defense: Defense | None = None) -> SplitModel:
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))
    with torch.no_grad():
        model(torch.zeros(2, *SHAPE))
    return SplitModel(model.eval(), cut, defense=defense)


def coder(inputs: int, features: int, penalty: float, *, standardize: bool = True) -> SparseCoding:
    rng = seeds.generator(0, "coder", inputs)
    return SparseCoding(inputs, features, 3, penalty=penalty, standardize=standardize, generator=rng)


def view_of(split: SplitModel) -> View:
    rng = seeds.generator(0, "oracle")
    return grant(split, ThreatModel(), image_set(80, "public"), rng, classes=CLASSES, device=CPU)


def leak(attack: Attack, split: SplitModel) -> float:
    truth, view = smooth_images(8, "victims"), view_of(split)
    with torch.no_grad():
        seen = split.release(truth, seeds.generator(0, "release"))
    prepared = attack.prepare(view, seeds.generator(0, "prepare"))
    guess = attack.reconstruct(view, prepared, Observed(seen), seeds.generator(0, "reconstruct")).images
    return 1 - float((guess - truth).square().mean() / (truth - view.public.images.mean(0)).square().mean())


def normed(features: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(features)
    rng = seeds.generator(0, "norm", features)
    assert norm.running_mean is not None
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.copy_(torch.rand(features, generator=rng) + 0.5)
    return norm


def test_a_code_that_leaves_nothing_out_is_read_back() -> None:
    assert leak(AnalyticSparse(), split_of(coder(1, 8, 0.01, standardize=False), cut="0")) > 0.99


def test_mean_and_scale_that_a_layer_forgets_are_guessed() -> None:
    assert leak(AnalyticSparse(), split_of(coder(1, 8, 0.02), cut="0")) > 0.9


def test_the_chain_of_two_codes_with_normalisation_between_is_read_back() -> None:
    # Sums of 16 atoms with weights of one sign do not span the 72 numbers of a window; of 64, nearly.
    layers = coder(1, 8, 0.05), normed(8), coder(8, 64, 0.05), normed(64)
    split = split_of(*layers, cut="3")
    assert leak(AnalyticSparse(), split) > 0.9


def test_rows_mixed_by_a_wide_linear_layer_are_unmixed() -> None:
    with seeds.ambient(0, "rows"):
        split = split_of(coder(1, 8, 1e-2), normed(8), nn.Linear(16, 48), nn.ReLU(), cut="3")
    assert leak(AnalyticSparse(), split) > 0.9


def test_more_sparsity_is_read_less_well() -> None:
    leaks = [leak(AnalyticSparse(), split_of(coder(1, 8, penalty), cut="0")) for penalty in (0.02, 0.5, 1.5)]
    assert leaks == sorted(leaks, reverse=True)


def squeezed_view(split: SplitModel, contrast: float, public: Tensor) -> tuple[View, Tensor]:
    """Public pictures and victims of little contrast: an estimate that runs off costs many times their variance."""
    pictures = replace(image_set(len(public), "public"), images=0.5 + contrast * (public - 0.5))
    rng = seeds.generator(0, "oracle")
    view = grant(split, ThreatModel(), pictures, rng, classes=CLASSES, device=CPU)
    return view, 0.5 + contrast * (smooth_images(32, "victims") - 0.5)


@pytest.mark.parametrize("penalty", [2.8, 3.0, 3.5])
@pytest.mark.parametrize("contrast", [1.0, 0.1])
def test_nearly_empty_codes_do_not_explode(penalty: float, contrast: float) -> None:
    """Some pictures keep one code or none. Slopes fitted to each of them gave leaks of −0.5 and −55 here."""
    split = split_of(coder(1, 8, penalty), cut="0")
    view, truth = squeezed_view(split, contrast, smooth_images(80, "public"))
    attack = AnalyticSparse()
    prepared = attack.prepare(view, seeds.generator(0, "prepare"))
    guess = attack.reconstruct(view, prepared, Observed(split.encode(truth)), seeds.generator(0, "reconstruct")).images
    blank = (truth - view.public.images.mean(0)).square().mean()
    assert (guess - truth).square().mean() < blank


def test_features_that_say_nothing_give_the_mean_picture_at_worst() -> None:
    """Released noise alone, by the thousand: with more numbers than pictures the first map fits anything."""
    split = split_of(coder(1, 8, 0.05), normed(8), coder(8, 16, 0.05), cut="2", defense=Gaussian(1e4))
    view, _ = squeezed_view(split, 1.0, smooth_images(60, "public"))
    details = AnalyticSparse(strengths=(1e-6,)).prepare(view, seeds.generator(0, "prepare")).diagnostics.details
    assert details["heldout_mse"] <= details["heldout_mse_of_the_mean"] * (1 + 1e-6)


def test_held_out_pictures_are_never_rebuilt_worse_than_by_their_mean() -> None:
    """Whatever a chain estimates: γ = 0 is the mean picture, and γ is chosen on the pictures it is judged by."""
    rng = seeds.generator(0, "trust")
    truth = torch.randn(9, 5, generator=rng)
    for estimate in (truth, -truth, 1e6 * torch.randn(9, 5, generator=rng), truth * 3, torch.full((9, 5), torch.inf)):
        gamma = _trust(estimate, truth)
        errors = [(g * estimate.nan_to_num(posinf=0) - truth).square().sum() for g in torch.linspace(0, 1, 1001)]
        assert (gamma * estimate.nan_to_num(posinf=0) - truth).square().sum() <= min(errors) + 1e-4
    assert _trust(torch.full((9, 5), torch.inf), truth) == 0


def test_the_scale_of_pictures_is_the_least_squares_one() -> None:
    """Against the whole design written out: every pixel a row, every (statistic, slope or shift) a column."""
    rng = seeds.generator(0, "scale")
    x, truth = torch.randn(10, 1, 4, 4, generator=rng), torch.rand(10, 1, 4, 4, generator=rng)
    tensors: dict[str, Tensor] = {}
    _fit_pictures(x, truth, tensors, held=2)
    known = _statistics(x[2:]).double()
    pixels = torch.stack((x[2:].flatten(1), torch.ones(8, 16)), 2).double()  # N×D×2
    rows = (known[:, None, :, None] * pixels[:, :, None, :]).reshape(8 * 16, 14)
    expected = torch.linalg.lstsq(rows, truth[2:].reshape(-1, 1).double()).solution.view(7, 2)
    fitted, best = rows @ tensors["scale"].double().view(14, 1), rows @ expected.view(14, 1)
    torch.testing.assert_close(fitted, best, rtol=1e-3, atol=1e-3)


def test_it_suits_only_networks_with_a_sparse_layer_before_the_cut() -> None:
    attack = AnalyticSparse()
    plain = split_of(nn.Conv2d(1, 4, 3, padding=1), cut="0")
    behind = split_of(nn.Conv2d(1, 4, 3, padding=1), coder(4, 4, 0.1), cut="0")
    before = split_of(coder(1, 4, 0.1), nn.ReLU(), cut="1")
    assert "no sparse layer in this network" in str(attack.unsuited(plain, SHAPE))
    assert "before the cut" in str(attack.unsuited(behind, SHAPE))
    assert attack.unsuited(before, SHAPE) is None


def test_search_goes_on_from_a_linear_picture_through_two_sparse_layers() -> None:
    split = split_of(coder(1, 8, 0.2), normed(8), coder(8, 16, 0.2), normed(16), cut="3")
    linear = leak(Ridge(), split)
    assert leak(Search(steps=12), split) < 0.1  # on its way to a local minimum: no more after 100 steps
    assert leak(Search(steps=0, start="linear"), split) == pytest.approx(linear, abs=1e-4)
    assert leak(Search(steps=6, start="linear"), split) > linear - 0.01 > 0.7


def test_search_follows_gradients_through_the_solver() -> None:
    layer = coder(1, 8, 0.2, standardize=False)  # else mean and scale are lost, and most of the variance with them
    layer.implicit = Implicit(iterations=3, tolerance=1e-3)
    split = split_of(layer, normed(8), cut="1")
    start, end = (leak(Search(steps=steps), split) for steps in (0, 30))
    assert end > start + 0.8


@pytest.mark.parametrize(
    ("inputs", "outputs", "layout"), [((3, 4, 5), (3, 4, 2), 0), ((5, 4, 4), (2, 4, 4), 1), ((7,), (2, 3, 3), 2)]
)
def test_an_affine_map_is_found_in_its_layout(inputs: tuple[int, ...], outputs: tuple[int, ...], layout: int) -> None:
    rng = seeds.generator(0, "affine", layout)
    z = torch.randn(60, *inputs, generator=rng)
    groups, width = {0: (inputs[0], inputs[-1]), 1: (1, inputs[0]), 2: (1, inputs[0])}[layout]
    wide = {0: outputs[-1], 1: outputs[0], 2: torch.Size(outputs).numel()}[layout]
    true = Affine(torch.randn(groups, width + 1, wide, generator=rng), outputs, layout)
    target: Tensor = true(z)
    found = fit_affine(z, target, 1e-10)
    assert found.layout == layout
    assert torch.allclose(found(z), target, atol=1e-3)
    tensors: dict[str, Tensor] = {}
    found.stored(tensors, "map")
    assert torch.equal(Affine.read(tensors, "map")(z), found(z))


def test_a_map_of_few_pictures_is_kept_as_a_sum_over_them() -> None:
    rng = seeds.generator(0, "wide")
    z, target, fresh = (torch.randn(n, d, generator=rng) for n, d in ((6, 400), (6, 300), (5, 400)))
    found = fit_affine(z, target, 1e-6)
    assert found.through is not None
    assert found.weights.numel() + found.through.numel() < 400 * 300 / 10
    wide, one = torch.cat((z, torch.ones(6, 1)), 1).double(), torch.ones(5, 1)
    gram = wide @ wide.T + (1e-6 * wide.square().sum() / 6 + 1e-12) * torch.eye(6)
    expected = torch.cat((fresh, one), 1).double() @ wide.T @ torch.linalg.inv(gram) @ target.double()
    torch.testing.assert_close(found(fresh), expected.float(), rtol=1e-4, atol=1e-4)
    tensors: dict[str, Tensor] = {}
    found.stored(tensors, "map")
    assert torch.equal(Affine.read(tensors, "map")(fresh), found(fresh))


@pytest.mark.parametrize("settings", [{"pictures": 1}, {"strengths": ()}, {"strengths": (0.0,)}])
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        AnalyticSparse(**settings)  # type: ignore[arg-type]
