"""Principal components against scikit-learn, and the closed form of a latent."""

from __future__ import annotations

import pytest
import torch
from sklearn.decomposition import PCA

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.prior import PRIORS
from leakscope.core.seeds import generator
from leakscope.nn.style_space import style_bounds, to_p
from leakscope.priors import linear
from leakscope.priors.linear import Linear, LinearGenerator, principal
from leakscope.testing.synthetic import CPU, image_set, smooth_images


def _fitted(components: int = 6) -> LinearGenerator:
    prior = Linear(components)
    made = prior.generator(prior.fit(image_set(80, "public"), generator(0, "fit"), device=CPU), CPU)
    assert isinstance(made, LinearGenerator)
    return made


@pytest.mark.parametrize("complete", [1024, 8], ids=["complete", "iterated"])
def test_components_are_those_of_scikit_learn(complete: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_EXACT", complete)
    rows = smooth_images(120, "rows").flatten(1)
    truth = PCA(5, svd_solver="full").fit(rows.double().numpy())
    deviations, directions = principal(rows - rows.mean(0), 5, generator(0, "start"))
    variances = torch.from_numpy(truth.explained_variance_).float()
    torch.testing.assert_close(deviations.square(), variances, rtol=1e-3, atol=1e-6)
    overlap = (directions * torch.from_numpy(truth.components_).float()).sum(1).abs()
    torch.testing.assert_close(overlap, torch.ones(5), atol=2e-3, rtol=0)
    torch.testing.assert_close(directions @ directions.T, torch.eye(5), atol=1e-4, rtol=0)


def test_a_latent_is_found_back_where_no_pixel_is_clipped() -> None:
    made = _fitted()
    z = 0.1 * made.sample(7, generator(1, "z"))
    images = made.decode(z)
    assert images.min() > 0
    assert images.max() < 1
    torch.testing.assert_close(made.encode(images), z, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(made.implausibility(images), z.square().mean(1) / 2, atol=1e-4, rtol=1e-3)


def test_the_nearest_picture_of_the_span_is_the_least_squares_one() -> None:
    made = _fitted()
    x = smooth_images(3, "others")
    basis = (made.directions * made.deviations[:, None]).T.double()  # pixels×K
    best = torch.linalg.lstsq(basis, (x.flatten(1) - made.mean).T.double()).solution.T
    torch.testing.assert_close(made.encode(x).double(), best, atol=1e-4, rtol=1e-3)


def test_without_a_mapping_network_styles_are_latents() -> None:
    made = _fitted()
    z = made.sample(4, generator(1, "z"))
    assert torch.equal(made.to_style(z), z)
    assert torch.equal(made.from_style(z[:, None]), made.decode(z))
    assert torch.equal(to_p(made, z), z)
    low, high, deviation = style_bounds(made, 4000, generator(2, "bounds"))
    torch.testing.assert_close(torch.stack([-low, high, deviation]), torch.ones(3, 6), atol=0.08, rtol=0)


def test_pictures_without_variance_give_their_mean() -> None:
    same = ImageSet(torch.full((9, 1, 4, 4), 0.25), torch.zeros(9, dtype=torch.int64), ("a",))
    prior = Linear(2)
    made = prior.generator(prior.fit(same, generator(0, "fit"), device=CPU), CPU)
    torch.testing.assert_close(made.pictures(3, generator(0, "s")), torch.full((3, 1, 4, 4), 0.25), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("count", "shape", "most"), [(20, (1, 16, 16), 19), (30, (1, 4, 4), 16)])
def test_there_are_no_more_components_than_pictures_and_pixels_have(
    count: int, shape: tuple[int, int, int], most: int
) -> None:
    prior = Linear(64)
    public = image_set(count, "few", shape)
    made = prior.generator(prior.fit(public, generator(0, "fit"), device=CPU), CPU)
    assert isinstance(made, LinearGenerator)
    assert made.latent == most
    centred = (public.images.flatten(1) - made.mean).double()
    told = (centred @ made.directions.T.double()).square().sum()
    torch.testing.assert_close(told, centred.square().sum(), rtol=1e-4, atol=0)  # all that there is


@pytest.mark.parametrize(
    ("spec", "count", "shape", "words"),
    [
        ("linear:64", 1, (1, 16, 16), "needs 2 public pictures"),
        ("linear:components=2,size=32", 30, (1, 16, 16), "leave size out"),
    ],
)
def test_what_it_cannot_learn_from_is_refused(spec: str, count: int, shape: tuple[int, int, int], words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        PRIORS.build(spec).fit(image_set(count, "few", shape), generator(0, "fit"), device=CPU)
    assert "\n" not in str(raised.value)
