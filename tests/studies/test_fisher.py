"""Fisher profiles against a loop of single backward passes and a closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakscope.core import seeds
from leakscope.core.model import SplitModel
from leakscope.studies.fisher import classification_profile, inversion_profile


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
        model[1].running_mean.uniform_(-0.1, 0.1)
    return SplitModel(model, "5").eval()


def pictures(count: int = 7) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=seeds.generator(0, "fisher pictures"))


def test_the_profile_is_a_loop_of_backward_passes() -> None:
    split, images, labels = network(), pictures(), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    profile = classification_profile(split, images, labels, chunk=3)
    assert profile.layers == ("0", "4", "6")
    for i, layer in enumerate((split.model[0], split.model[4], split.model[6])):
        squares = torch.zeros(sum(p.numel() for p in layer.parameters()), dtype=torch.float64)
        for image, label in zip(images, labels, strict=True):
            split.zero_grad()
            F.cross_entropy(split.model(image[None]), label[None]).backward()
            squares += torch.cat([p.grad.flatten() for p in layer.parameters()]).double() ** 2
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
