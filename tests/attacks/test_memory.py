"""Attacks on more pictures than memory holds: they go on with fewer at once, and find the same pictures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.core.attack import ATTACKS, Attack
from leakscope.core.model import SplitModel
from leakscope.core.threat import Access, View
from leakscope.testing import AttackContract
from leakscope.testing.synthetic import small_split, small_view

MOST = 2


class Small(nn.Module):
    """A network whose device holds two pictures with gradients at a time."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.refused = network, 0

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > MOST and x.requires_grad:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        found: Tensor = self.network(x)
        return found


class Contract(AttackContract):
    def view(self, access: frozenset[Access], *, small: bool = False) -> View:  # type: ignore[override]
        split = small_split()
        if small:
            model = split.model
            assert isinstance(model, nn.Module)
            model.features = Small(model.get_submodule("features"))
            split = SplitModel(model, "features").eval()
        return small_view(access, split=split)


@pytest.mark.parametrize("spec", ["search:steps=8", "embedding:steps=8", "e2e-lbfgs:iterations=6"])
def test_a_search_goes_on_with_fewer_pictures(spec: str) -> None:
    attack: Attack = ATTACKS.build(spec)
    suite = Contract()
    whole = suite.run(attack, suite.view(attack.needs))
    view = suite.view(attack.needs, small=True)
    halved = suite.run(attack, view)
    refused = next(module.refused for module in view.encoder.modules() if isinstance(module, Small))
    assert refused > 0
    # Noise at the start is drawn for a whole chunk: `embedding` and `e2e-lbfgs` start elsewhere in a smaller one.
    near = 1e-4 if attack.kind_name == "search" else 0.1
    torch.testing.assert_close(halved.images, whole.images, atol=near, rtol=0)
