"""Threat models: what is granted is there, what is not cannot be reached."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakscope.core.data import ImageSet
from leakscope.core.defense import Defense
from leakscope.core.errors import NotGranted, UsageError
from leakscope.core.model import SplitModel
from leakscope.core.seeds import ambient, generator
from leakscope.core.threat import Access, Encoder, Oracle, QueriesExhausted, ThreatModel, grant

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


class Shift(Defense):
    """Adds one to every feature."""

    def release(self, z: Tensor, rng: torch.Generator | None, *, training: bool = False) -> Tensor:
        return z + 1


def test_whoever_holds_the_encoder_answers_queries_at_home(target: SplitModel, public: ImageSet) -> None:
    target.defense = Shift()
    access = frozenset({Access.FEATURES, Access.ENCODER})
    view = _view(target, public, access=access, queries=0)
    assert torch.equal(view.query(public.images), target.encode(public.images) + 1)  # type: ignore[attr-defined]
    assert view.budget.spent == 0  # type: ignore[attr-defined]
    ThreatModel(access).require(frozenset({Access.FEATURES, Access.QUERY}), "ridge")
    with pytest.raises(UsageError, match="needs query"):
        ThreatModel(frozenset({Access.FEATURES})).require(frozenset({Access.QUERY}), "ridge")


def test_the_servers_half_runs_on_features_alone(target: SplitModel, public: ImageSet) -> None:
    """Without the encoder; in one batch; the last layer gives the scores."""
    view = _view(target, public, access=frozenset({Access.FEATURES, Access.HEAD}))
    z = target.encode(public.images)
    outputs = view.behind(z)  # type: ignore[attr-defined]
    assert list(outputs) == ["3", "4"]
    assert torch.equal(outputs["3"], z.flatten(1))
    assert torch.equal(outputs["4"], target(public.images))
    for name in ("encoder", "network"):
        with pytest.raises(NotGranted):
            getattr(view, name)


def test_layers_behind_a_cut_inside_a_block_are_seen_once(public: ImageSet) -> None:
    """A residual block behind the cut, a layer that works in place, a batch that the server puts in order."""

    class Server(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.back = Unshuffle()
            self.relu = nn.ReLU(inplace=True)
            self.out = nn.Linear(36, 4)

        def forward(self, z: Tensor) -> Tensor:
            z = self.back(z)
            scores: Tensor = self.out(z + self.relu(z.clone()))
            return scores

    class Unshuffle(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z.flip(0)

    with ambient(0, "behind"):
        split = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(36, 36), Server()), "1").eval()
    view = _view(split, public, access=frozenset({Access.HEAD}))
    z = split.encode(public.images)
    outputs = view.behind(z)  # type: ignore[attr-defined]
    # The sum between the layers is no layer of anybody's, and is seen as well.
    assert [name for name in outputs if name.startswith("2.")] == ["2.back", "2.relu", "2.out"]
    assert any(torch.equal(value, z.flip(0) + z.flip(0).relu()) for value in outputs.values())
    assert torch.equal(outputs["2.back"], z.flip(0))
    assert torch.equal(outputs["2.relu"], z.flip(0).relu())


def test_an_unknown_defence_is_nowhere_in_the_view(target: SplitModel, public: ImageSet) -> None:
    target.defense = Shift()
    view = _view(target, public, knows_defense=False)
    pending: list[object] = [vars(view)]
    seen: set[int] = set()
    while pending:  # the oracle answers for the real target; nobody may look inside it
        item = pending.pop()
        if id(item) in seen or isinstance(getattr(item, "__self__", None), Oracle):
            continue
        seen.add(id(item))
        assert not isinstance(item, Shift)
        if isinstance(item, dict):
            pending += [*item.values()]
        elif isinstance(item, nn.Module) or type(item).__module__.startswith("leakscope"):
            pending += [*getattr(item, "__dict__", {}).values(), getattr(item, "__self__", None)]
    assert torch.equal(view.network.run(public.images).released, target.encode(public.images))  # type: ignore[attr-defined]
    assert torch.equal(view.query(public.images), target.encode(public.images) + 1)  # type: ignore[attr-defined]


class _LabelFirst(nn.Module):
    """A client that sends features and, from layers of its own, a label: no gradient comes back from that."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.scores = nn.Linear(12, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.features(x.flatten(1))
        return torch.cat((z, torch.nn.functional.one_hot(self.scores(z).argmax(1), 4).to(z)), 1)


def test_the_encoder_keeps_what_is_read_without_a_gradient() -> None:
    images = torch.rand(32, 3, 2, 2, generator=generator(0, "pictures"))
    target = SplitModel(nn.Sequential(_LabelFirst(), nn.Linear(9, 4)), "0").eval()
    encoder = Encoder(target, images[:2])
    assert torch.equal(encoder(images), target.encode(images))
    assert all((p == 0).all() for p in encoder.split.model.get_submodule("1").parameters())


def test_digits_that_an_audit_would_not_see_are_refused(public: ImageSet) -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1 + 1e-13 * x.double()

    target = SplitModel(nn.Sequential(Double(), nn.Flatten(), nn.Linear(36, 4).double()), "0").eval()
    with pytest.raises(UsageError, match="gives float64 for float32 pictures"):
        target.encode(public.images)
    assert target.encode(public.images.double()).dtype == torch.float64
