from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.data.embedded import Mnist5k
from leakscope.data.splits import SplitIndex, SplitPlan, distinct
from leakscope.data.toyfaces import ToyFaces


def numbered(labels: list[int], classes: int | None = None) -> ImageSet:
    """Image i shows the number i, so that every position can be told from its pixels."""
    count = len(labels)
    images = (
        torch.stack([torch.arange(count) // 256, torch.arange(count) % 256], 1).float().div(255).view(count, 1, 1, 2)
    )
    names = tuple(f"c{label}" for label in range(classes or max(labels) + 1))
    return ImageSet(images, torch.tensor(labels), names)


def positions(part: ImageSet) -> list[int]:
    return (part.images.flatten(1) * 255).round().long().matmul(torch.tensor([256, 1])).tolist()


def test_the_default_set_splits_as_the_audit_expects() -> None:
    splits = SplitPlan().draw(Mnist5k().load(None), seed=0)
    assert [len(part) for part in (splits.private, splits.heldout, splits.public)] == [2500, 500, 2000]
    for part, each in ((splits.private, 250), (splits.heldout, 50), (splits.public, 200)):
        assert part.labels.bincount().tolist() == [each] * 10
    # Every beginning of a part is balanced too.
    assert splits.heldout.labels[:100].bincount().tolist() == [10] * 10


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(8, 60), min_size=2, max_size=5),
    seed=st.integers(0, 3),
    private=st.floats(0.3, 0.45),
    public=st.floats(0.2, 0.35),
)
def test_parts_are_disjoint_exact_and_in_proportion(sizes: list[int], seed: int, private: float, public: float) -> None:
    data = numbered([label for label, size in enumerate(sizes) for _ in range(size)])
    plan = SplitPlan(private=private, heldout=0.2, public=public)
    index = plan.index(data, seed)
    parts = [index.private, index.heldout, index.public]
    joined = torch.cat(parts)
    assert len(joined.unique()) == len(joined)
    assert len(index.private) == round(private * len(data))
    for part in parts:
        for label, size in enumerate(sizes):
            there = int((data.labels[part] == label).sum())
            assert abs(there - size * len(part) / len(data)) < 2


def test_counts_are_exact_and_the_seed_decides() -> None:
    data = numbered([0, 1, 2] * 40)
    plan = SplitPlan(private=50, heldout=11, public=20)
    first, again, other = plan.draw(data, 0), plan.draw(data, 0), plan.draw(data, 1)
    assert [len(first.private), len(first.heldout), len(first.public)] == [50, 11, 20]
    assert first.digest() == again.digest() != other.digest()


def test_a_limit_uses_that_many_images_of_all_classes() -> None:
    data = numbered([0] * 100 + [1] * 50)
    index = SplitPlan(limit=30).index(data, 0)
    used = torch.cat([index.private, index.heldout, index.public])
    assert len(used) == 30
    assert data.labels[used].bincount().tolist() == [20, 10]


def test_copies_go_and_copies_under_two_labels_go_altogether() -> None:
    data = numbered([0, 0, 0, 1, 1, 1])
    images = data.images.clone()
    images[2] = images[0]  # a copy with the same label
    images[4] = images[1]  # a copy with another label
    assert distinct(ImageSet(images, data.labels, data.classes)).tolist() == [0, 3, 5]


def test_by_identity_public_people_are_others_and_heldout_people_are_known() -> None:
    data = ToyFaces(identities=20, images=10, size=16).load(None)
    splits = SplitPlan(by_identity=True).draw(data, seed=3)
    assert [len(part.classes) for part in (splits.private, splits.heldout, splits.public)] == [12, 12, 8]
    assert splits.private.classes == splits.heldout.classes
    assert not set(splits.private.classes) & set(splits.public.classes)
    assert [len(splits.private), len(splits.heldout), len(splits.public)] == [100, 20, 80]
    # Renumbered labels still name the person in the picture.
    whole = dict(zip(data.fingerprints(), [data.classes[label] for label in data.labels.tolist()], strict=True))
    for part in (splits.private, splits.heldout, splits.public):
        assert part.labels.unique().tolist() == list(range(len(part.classes)))
        for mark, label in zip(part.fingerprints(), part.labels.tolist(), strict=True):
            assert whole[mark] == part.classes[label]


def test_by_identity_with_uneven_people_takes_what_there_is() -> None:
    data = numbered([0] * 60 + [1] * 10 + [2] * 10 + [3] * 10)
    for seed in range(6):
        splits = SplitPlan(by_identity=True).draw(data, seed)
        assert min(len(splits.private), len(splits.heldout), len(splits.public)) >= 2
        assert len(set(positions(splits.private)) & set(positions(splits.heldout))) == 0
    with pytest.raises(UsageError, match="public identities"):
        SplitPlan(private=10, heldout=4, public=85, by_identity=True).draw(data, 0)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (SplitPlan(private=100), "ask for fewer"),
        (SplitPlan(private=2, heldout=2, public=2), "none of class"),
        (SplitPlan(heldout=1), "two or more"),
        (SplitPlan(private=3, limit=5), "two or more"),
    ],
)
def test_sets_that_are_too_small_are_refused(plan: SplitPlan, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan.draw(numbered([0, 1, 2] * 10), seed=0)


def test_two_classes_have_no_third_to_be_public() -> None:
    with pytest.raises(UsageError, match="three classes"):
        SplitPlan(by_identity=True).draw(numbered([0, 1] * 20), seed=0)


@pytest.mark.parametrize("sizes", [{"private": 0.9}, {"heldout": 0}, {"public": -1}, {"private": 2.5}, {"limit": 0}])
def test_impossible_plans_are_refused_at_once(sizes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"add up|must be"):
        SplitPlan(**sizes)  # type: ignore[arg-type]


def test_parts_that_share_a_picture_are_refused() -> None:
    data = numbered([0, 1] * 10)
    images = data.images.clone()
    images[9] = images[0]
    shared = SplitIndex(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([8, 9]))
    shared.splits(data)
    with pytest.raises(UsageError, match="share an image"):
        shared.splits(ImageSet(images, data.labels, data.classes))


def test_full_mnist_has_room_for_the_default_plan(shared_data: Path) -> None:
    from leakscope.data.torchvision_sets import FashionMnist

    data = FashionMnist().load(shared_data)
    index = SplitPlan().index(data, 0)
    kept = len(distinct(data))
    assert len(data) - kept < 100
    assert len(index.private) == round(kept / 2)


def test_least_makes_the_large_classes_private() -> None:
    labels = torch.tensor([0] * 12 + [1] * 3 + [2] * 10 + [3] * 2 + [4] * 4)
    images = torch.rand(len(labels), 1, 4, 4, generator=torch.Generator().manual_seed(0))
    data = ImageSet(images, labels, tuple("abcde"))
    splits = SplitPlan(private=0.5, heldout=0.2, public=0.3, by_identity=True, least=10).draw(data, seed=0)
    assert set(splits.private.classes) == {"a", "c"}
    assert set(splits.public.classes) == {"b", "d", "e"}
    assert len(splits.private) + len(splits.heldout) <= 22
    with pytest.raises(UsageError, match="least"):
        SplitPlan(by_identity=True, least=13).draw(data, seed=0)
    with pytest.raises(ValueError, match="by_identity"):
        SplitPlan(least=2)
