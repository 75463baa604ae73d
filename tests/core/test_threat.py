"""Threat models: what is granted is there, what is not cannot be reached."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakscope.core.data import ImageSet
from leakscope.core.errors import NotGranted, UsageError
from leakscope.core.model import SplitModel
from leakscope.core.seeds import ambient, generator
from leakscope.core.threat import Access, Encoder, QueriesExhausted, ThreatModel, grant

CPU = torch.device("cpu")


@pytest.fixture
def target() -> SplitModel:
    with ambient(0, "threat"):
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 4)
        )
    return SplitModel(model, "2").eval()


@pytest.fixture
def public() -> ImageSet:
    images = torch.rand(8, 1, 6, 6, generator=generator(0, "public"))
    return ImageSet(images, torch.arange(8) % 4, tuple("abcd"))


def _view(target: SplitModel, public: ImageSet, **threat: object) -> object:
    return grant(target, ThreatModel(**threat), public, generator(0, "oracle"), classes=4, device=CPU)  # type: ignore[arg-type]


def test_nothing_is_handed_over_that_was_not_named(target: SplitModel, public: ImageSet) -> None:
    view = _view(target, public, access=frozenset({Access.QUERY}), public_data=False)
    assert view.query(public.images).shape == (8, 3, 6, 6)  # type: ignore[attr-defined]
    for name in ("encoder", "network", "defense", "public"):
        with pytest.raises(NotGranted, match="only: query"):
            getattr(view, name)
    with pytest.raises(NotGranted):
        view.scores(public.images)  # type: ignore[attr-defined]


def test_the_encoder_gives_the_features_and_knows_nothing_of_the_head(target: SplitModel, public: ImageSet) -> None:
    encoder = Encoder(target, public.images[:2])
    assert torch.equal(encoder(public.images), target.encode(public.images))
    head = encoder.split.model.get_submodule("4")
    assert all((p == 0).all() for p in head.parameters())
    assert any((p != 0).any() for p in target.model.get_submodule("4").parameters())


def test_the_view_cannot_change_the_target(target: SplitModel, public: ImageSet) -> None:
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    view = _view(target, public)
    with torch.no_grad():
        for p in [*view.encoder.parameters(), *view.network.parameters()]:  # type: ignore[attr-defined]
            p.add_(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in target.state_dict().items())


@pytest.mark.parametrize("limit", [0, 1, 7, 8, 20])
def test_a_query_budget_is_never_exceeded(target: SplitModel, public: ImageSet, limit: int) -> None:
    view = _view(target, public, queries=limit)
    served = 0
    for count in (5, 3, 8, 1, 1):
        try:
            served += len(view.labels(public.images[:count]))  # type: ignore[attr-defined]
        except QueriesExhausted:
            continue
    assert served == view.budget.spent <= limit  # type: ignore[attr-defined]


def test_a_threat_model_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"search needs encoder; the threat model grants: features"):
        ThreatModel(frozenset({Access.FEATURES})).require(frozenset({Access.ENCODER}), "search")
