"""Controls and floors with known answers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakscope.core.data import ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.seeds import generator
from leakscope.defenses.gaussian import Gaussian
from leakscope.experiments.floors import FLOORS, class_means
from leakscope.experiments.stand_ins import PixelPath, canary, easy_pictures, identity_control, residual_control


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


@pytest.mark.parametrize("cut", ["0", "2"])
def test_the_canary_is_beside_the_defence_not_instead_of_it(cut: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 64, 6), nn.Linear(6, 4))
    target = SplitModel(model, cut, defense=Gaussian(sigma=5.0)).eval()
    x = torch.rand(2, 1, 8, 8)
    shape = tuple(target.encode(x).shape[1:])
    planted = canary(target, shape, classes=4)
    released = planted.release(x, generator(0, "r"))
    clean = planted.encode(x)
    width = shape[0]
    assert torch.equal(released[:, width:], clean[:, width:])
    assert (released[:, :width] - clean[:, :width]).std() > 3
    assert torch.equal(released[:, width:].flatten(1).sort().values, x.flatten(1).sort().values)


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
        for layer, channels in ((block.first, 1), (block.second, 4)):
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
