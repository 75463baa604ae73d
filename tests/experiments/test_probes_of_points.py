"""Points that are not pictures are probed in their own range, not in that of pixels."""

from __future__ import annotations

import torch

from leakscope.core import seeds
from leakscope.core.defense import Stack
from leakscope.core.model import SplitModel
from leakscope.data.gaussians import Gaussians
from leakscope.experiments.probes import probe
from leakscope.models.mlp import MLP


def test_a_plain_network_of_points_is_not_chaotic() -> None:
    points = Gaussians(count=600).load(None)
    with seeds.ambient(0, "points"):
        model = MLP(widths=(16, 8)).build(points.shape, 2).eval()
    split = SplitModel(model, "relu1", defense=Stack(())).eval()
    public, heldout = points.take(torch.arange(300)), points.take(torch.arange(300, 600))
    found = probe(split, public, heldout, torch.device("cpu"))
    assert found.chaotic == 0
