"""Fisher profiles against a loop of single backward passes and a closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.data import ImageSet, Splits
from leakscope.core.model import SplitModel
from leakscope.studies.fisher import (
    Comparison,
    class_centres,
    classification_profile,
    compare,
    inversion_profile,
    pictures_by_class,
)


def network() -> SplitModel:
    with seeds.ambient(0, "fisher"):
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * 36, 6),
            nn.Tanh(),
            nn.Linear(6, 3),
        )
        norm = model[1]
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        norm.running_mean.uniform_(-0.1, 0.1)
    return SplitModel(model, "5").eval()


def pictures(count: int = 7) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=seeds.generator(0, "fisher pictures"))


def test_the_profile_is_a_loop_of_backward_passes() -> None:
    split, images, labels = network(), pictures(), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    profile = classification_profile(split, images, labels, chunk=3)
    assert profile.layers == ("0", "4", "6")
    model = split.model
    assert isinstance(model, nn.Sequential)
    for i, layer in enumerate((model[0], model[4], model[6])):
        squares = torch.zeros(sum(p.numel() for p in layer.parameters()), dtype=torch.float64)
        for image, label in zip(images, labels, strict=True):
            split.zero_grad()
            F.cross_entropy(split.model(image[None]), label[None]).backward()
            squares += torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None]).double() ** 2
        fisher = squares / len(images)
        theta = torch.cat([p.detach().flatten() for p in layer.parameters()]).double()
        assert profile.mean[i].item() == pytest.approx(fisher.mean().item(), rel=1e-4)
        assert profile.total[i].item() == pytest.approx(fisher.sum().item(), rel=1e-4)
        assert profile.weighted[i].item() == pytest.approx((fisher * theta**2).sum().item(), rel=1e-4)


def test_layers_behind_the_features_do_not_matter_for_rebuilding() -> None:
    profile = inversion_profile(network(), pictures(4), torch.zeros(4, 6))
    assert profile.mean[2].item() == 0
    assert (profile.mean[:2] > 0).all()
    assert profile.normalised().max().item() == pytest.approx(1)


def test_a_linear_layer_has_a_closed_form() -> None:
    """ℓ = ‖W x − c‖₂: ∂ℓ/∂W = u xᵀ with the unit residual u, so the layer's total is the mean of ‖x‖²."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False), nn.Linear(5, 2))
    images = pictures()
    profile = inversion_profile(SplitModel(model, "1").eval(), images, torch.zeros(len(images), 5))
    assert profile.total[0].item() == pytest.approx(images.flatten(1).square().sum(1).mean().item(), rel=1e-4)


def _faces(order: list[int]) -> ImageSet:
    """Three pictures of each of six classes, in this order of classes; a class's pictures have its brightness."""
    labels = torch.tensor(order * 3)
    noise = torch.rand(3, 6, 1, 8, 8, generator=seeds.generator(0, "faces by class"))  # copy, class
    images = labels[:, None, None, None] / 6 + 0.05 * noise[:, order].flatten(0, 1)
    return ImageSet(images, labels, tuple(f"person {n}" for n in range(6)))


def test_centres_and_pictures_are_in_the_order_of_the_classes() -> None:
    split, private = network(), _faces([5, 3, 0, 2, 4, 1])
    classes = torch.arange(6)
    centres = class_centres(split, private.images, private.labels, classes)
    with torch.no_grad():
        for one in classes:
            own = split.encode(private.images[private.labels == one]).flatten(1).mean(0)
            torch.testing.assert_close(centres[one], own)
    each = pictures_by_class(private, classes, 2)
    assert each.shape == (6, 2, 1, 8, 8)
    brightness = each.mean((1, 2, 3, 4))
    assert (brightness.diff() > 0).all()  # sorted as the classes are, whatever the order of the file


def _compared(order: list[int], fresh: SplitModel | None = None) -> Comparison:
    part = _faces(order)
    rebuilt = pictures_by_class(part, torch.arange(6), 1)[:, 0].flip(-1)
    heldout = ImageSet(part.images, part.labels % 3, part.classes)  # the network tells three classes apart
    splits = Splits(part, heldout, part)
    return compare(network(), fresh or network(), splits, torch.arange(6), {"end": rebuilt}, 6)


def test_the_control_of_private_pictures_does_not_depend_on_the_order_of_the_file() -> None:
    """It compared the first pictures of the file, whoever they show, with centres sorted by class."""
    control = "control: private pictures"
    one, other = (_compared(order).profiles[control] for order in ([5, 3, 0, 2, 4, 1], [5, 3, 0, 2, 4, 1][::-1]))
    assert one == pytest.approx(other, abs=1e-5)
    # A picture lies near its own centre: the truth, not a stranger's.
    split, private = network(), _faces([5, 3, 0, 2, 4, 1])
    centres = class_centres(split, private.images, private.labels, torch.arange(6))
    with torch.no_grad():
        mine = split.encode(pictures_by_class(private, torch.arange(6), 1)[:, 0]).flatten(1)
    assert (torch.cdist(mine, centres).argmin(1) == torch.arange(6)).all()


def test_the_control_of_random_weights_has_centres_of_its_own() -> None:
    """On the trained network itself it is the profile of rebuilding, which it was not with another's centres."""
    same = _compared([0, 1, 2, 3, 4, 5])
    assert same.profiles["control: random weights"] == same.profiles["inversion"]
    with seeds.ambient(1, "another"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6),
                              nn.Tanh(), nn.Linear(6, 3))  # fmt: skip
    fresh = SplitModel(model, "5").eval()
    part = _faces([0, 1, 2, 3, 4, 5])
    rebuilt = pictures_by_class(part, torch.arange(6), 1)[:, 0].flip(-1)
    own = class_centres(fresh, part.images, part.labels, torch.arange(6))
    expected = inversion_profile(fresh, rebuilt, own).normalised().tolist()
    found = _compared([0, 1, 2, 3, 4, 5], fresh).profiles["control: random weights"]
    assert found == pytest.approx(expected, abs=1e-5)


def test_moving_centres_are_differentiated_too() -> None:
    """ℓ = ‖W(x − mean of the class)‖₂ has the gradient u (x − mean)ᵀ: the total is the mean of ‖x − mean‖²."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False), nn.Linear(5, 2))
    split = SplitModel(model, "1").eval()
    images, own = pictures(4), torch.rand(4, 3, 1, 8, 8, generator=seeds.generator(1, "own"))
    moving = inversion_profile(split, images, own)
    expected = (images - own.mean(1)).flatten(1).square().sum(1).mean().item()
    assert moving.total[0].item() == pytest.approx(expected, rel=1e-4)
    fixed = inversion_profile(split, images, split.encode(own.flatten(0, 1)).detach().view(4, 3, 5).mean(1))
    assert fixed.total[0].item() == pytest.approx(images.flatten(1).square().sum(1).mean().item(), rel=1e-4)


def test_profiles_are_compared_over_the_layers_that_features_pass() -> None:
    alike = Comparison(
        ("a", "b", "c", "d"), {"classification": (1.0, 0.5, 0.2, 9.0), "inversion": (0.5, 0.25, 0.1, 0.0)}
    )
    assert alike.correlation() == pytest.approx(1.0)
    assert alike.early_share("inversion") == pytest.approx(0.5 / 0.85)
    apart = Comparison(("a", "b", "c"), {"classification": (0.1, 0.5, 1.0), "inversion": (1.0, 0.6, 0.1)})
    assert apart.correlation() == pytest.approx(-1.0)
