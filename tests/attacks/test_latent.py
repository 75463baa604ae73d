"""The search inside a generator: contract, projection against brute force, and a prior whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn

from leakscope.attacks.e2e_lbfgs import EndToEnd
from leakscope.attacks.latent import Latent, within_ball
from leakscope.core import seeds
from leakscope.core.attack import Attack, Observed
from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.model import SplitModel
from leakscope.core.prior import PRIORS
from leakscope.core.threat import Access, ThreatModel, grant
from leakscope.models.architecture import MODELS
from leakscope.testing import AttackContract

CPU = torch.device("cpu")


class TestLatent(AttackContract):
    @pytest.fixture
    def attack(self) -> Attack:
        return Latent(prior=PRIORS.build("linear"), candidates=300, steps=80)


def test_projection_is_the_nearest_point_of_the_ball() -> None:
    """By the threshold at which the shrunk row has the wanted norm, found by bisection."""
    rows = torch.randn(20, 33, generator=seeds.generator(0, "rows"), dtype=torch.float64)
    radius = torch.linspace(0.1, 60, 20, dtype=torch.float64)
    for row, limit, found in zip(rows.numpy(), radius.numpy(), within_ball(rows, radius).numpy(), strict=True):
        size = np.abs(row)

        def excess(t: float, size: np.ndarray = size, limit: float = limit) -> float:
            return float(np.maximum(size - t, 0).sum() - limit)

        threshold = brentq(excess, 0, size.max()) if size.sum() > limit else 0.0
        np.testing.assert_allclose(found, np.sign(row) * np.maximum(size - threshold, 0), atol=1e-9)


@pytest.mark.parametrize("prior", ["style:width=4,steps=4,opening=2", "dcgan:width=4,steps=4,opening=2"])
def test_hidden_maps_without_a_change_give_the_same_pictures(prior: str) -> None:
    built = PRIORS.build(prior)
    data = DATASETS.build("digits").load(None)
    public = data.take(torch.arange(64))
    public = type(public)(nn.functional.interpolate(public.images, 16), public.labels, public.classes)
    generator = built.generator(built.fit(public, seeds.generator(0, "fit"), device=CPU), CPU)
    w = generator.to_style(generator.sample(3, seeds.generator(0, "w")))[:, None].expand(-1, generator.layers, -1)
    plain = generator.from_style(w)
    assert generator.blocks >= 2
    none = {block: torch.zeros_like(generator.hidden(w, block, {})) for block in range(generator.blocks)}
    torch.testing.assert_close(generator.from_hidden(w, none), plain)
    for block, zero in none.items():
        moved = generator.from_hidden(w, {block: zero + 0.5})
        assert (moved - plain).abs().max() > 1e-4


def test_five_numbers_of_a_linear_prior_give_its_five_components() -> None:
    """Pictures of a five-dimensional prior, the attacker's own too, seen through five random projections."""
    data = DATASETS.build("digits").load(None)
    prior = PRIORS.build("linear:components=5")
    state = prior.fit(data.take(torch.arange(1000)), seeds.generator(0, "prior"), device=CPU)
    generator = prior.generator(state, CPU)
    drawn = generator.decode(0.5 * generator.sample(400, seeds.generator(0, "public")))
    public = ImageSet(drawn, torch.zeros(400, dtype=torch.int64), ("any",))
    with seeds.ambient(0, "net"):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        split = SplitModel(nn.Sequential(encoder, nn.Linear(5, 10)), "0").eval()
    truth = generator.decode(0.5 * generator.sample(12, seeds.generator(0, "truth")))
    access = frozenset({Access.FEATURES, Access.ENCODER})
    view = grant(split, ThreatModel(access), public, seeds.generator(0, "q"), classes=10, device=CPU)
    attack = Latent(prior=prior, candidates=200, steps=100)
    with torch.no_grad():
        seen = Observed(split.release(truth))
    prepared = attack.prepare(view, seeds.generator(0, "p"))
    guess = attack.reconstruct(view, prepared, seen, seeds.generator(0, "r")).images
    mean = public.images.mean(0)
    assert (guess - truth).square().mean() < 0.05 * (mean - truth).square().mean()


def test_suites_leave_out_what_others_do_better() -> None:
    """A prior where features outnumber pixels; an end-to-end solve where no shortcut asks for one."""
    plain = SplitModel(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 5), nn.Linear(5, 10)), "0")
    few = SplitModel(plain.model, "2")
    assert "288 features for 64 pixels" in (Latent().redundant(plain, (1, 8, 8)) or "")
    assert Latent().redundant(few, (1, 8, 8)) is None
    residual = SplitModel(MODELS.build("preact-resnet:depth=18,width=4").build((1, 8, 8), 10), "layer1")
    assert "no shortcuts" in (EndToEnd().redundant(plain, (1, 8, 8)) or "")
    assert EndToEnd().redundant(residual.eval(), (1, 8, 8)) is None
