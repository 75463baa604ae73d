"""The pseudo-client against encoders that it never asks, and kernels against brute force."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from leakscope.attacks._shadow import kernel_distance
from leakscope.attacks.pseudo_client import PseudoClient
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, ThreatModel, View, grant
from leakscope.testing import AttackContract

CPU = torch.device("cpu")
ONLY_FEATURES = frozenset({Access.FEATURES})


class TestPseudoClient(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return PseudoClient(shadows=1, steps=80)


class Blurred(nn.Module):
    """Pictures averaged over 2×2 and turned upside down in brightness."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(2)
        self.turned = nn.Conv2d(1, 1, 1)
        self.turned.weight.data.fill_(-3.0)
        self.turned.bias.data.fill_(1.0)  # type: ignore[union-attr]
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.turned(self.pool(x)))
        return scores


def digits() -> tuple[ImageSet, Tensor]:
    data = DATASETS.build("digits").load(None)
    order = torch.randperm(len(data), generator=seeds.generator(0, "order"))
    return data.take(order[:600]), data.images[order[600:640]]


def attacked(split: SplitModel, attack: PseudoClient) -> tuple[float, View]:
    """The share of the variance recovered beyond the mean picture, and the view that the attack had."""
    public, truth = digits()
    view = grant(split, ThreatModel(ONLY_FEATURES), public, seeds.generator(0, "q"), classes=10, device=CPU)
    with torch.no_grad():
        seen = Observed(split.release(truth, seeds.generator(0, "victims")))
    guess = attack.reconstruct(
        view, attack.prepare(view, seeds.generator(0, "p")), seen, seeds.generator(0, "r")
    ).images
    return float(1 - (guess - truth).square().sum() / (public.images.mean(0) - truth).square().sum()), view


def test_it_reads_blurred_pictures_without_a_query_and_without_weights() -> None:
    share, view = attacked(SplitModel(Blurred(), "turned").eval(), PseudoClient())
    public, truth = digits()
    coarse = nn.functional.interpolate(nn.functional.avg_pool2d(truth, 2), scale_factor=2.0)
    known = float(1 - (coarse - truth).square().sum() / (public.images.mean(0) - truth).square().sum())
    assert share > 0.8 * known  # of what is plain to see for who knows the encoder
    assert view.budget.spent == 0
    assert Access.QUERY not in view
    assert Access.ENCODER not in view


def test_vectors_give_the_mean_picture_rather_than_a_wrong_one() -> None:
    """Nothing tells where a feature of a vector comes from but its distribution."""
    with seeds.ambient(0, "vector"):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    share, _ = attacked(SplitModel(net, "2").eval(), PseudoClient(steps=60))
    assert share > -0.05


def test_it_is_left_out_where_the_encoder_need_not_be_guessed() -> None:
    attack = PseudoClient()
    assert attack.unneeded(ThreatModel(ONLY_FEATURES)) is None
    assert attack.unneeded(ThreatModel(ONLY_FEATURES | {Access.HEAD})) is None
    assert attack.unneeded(ThreatModel(ONLY_FEATURES | {Access.QUERY})) is not None
    assert attack.unneeded(ThreatModel(ONLY_FEATURES | {Access.ENCODER})) is not None


def test_the_kernel_distance_is_the_sum_over_pairs() -> None:
    rng = seeds.generator(0, "kernel")
    for channels in (2, 6):
        a, b = torch.randn(5, channels, generator=rng).double(), torch.randn(4, channels, generator=rng).double() + 1
        both = torch.cat((a, b))
        width = torch.stack([(p - q).square().sum() for p in both for q in both]).median()

        def mean(first: Tensor, second: Tensor, width: Tensor = width) -> float:
            values = [
                sum(math.exp(-float((p - q).square().sum() / (s * width))) for s in (0.25, 1.0, 4.0)) / 3
                for i, p in enumerate(first)
                for j, q in enumerate(second)
                if first is not second or i != j
            ]
            return sum(values) / len(values)

        expected = mean(a, a) + mean(b, b) - 2 * mean(a, b)
        assert float(kernel_distance(a, b)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("settings", [{"shadows": 0}, {"steps": -1}, {"batch": 1}, {"learning_rate": 0.0}])
def test_settings_that_mean_nothing_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        PseudoClient(**settings)  # type: ignore[arg-type]
