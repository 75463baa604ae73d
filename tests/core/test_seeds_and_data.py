"""Named generators, and splits that refuse to cheat."""

from __future__ import annotations

import pytest
import torch

from leakscope.core.data import ImageSet, Splits
from leakscope.core.errors import UsageError
from leakscope.core.seeds import ambient, derive, generator


def test_streams_depend_on_the_whole_path() -> None:
    names = [(0, ("a", "b")), (0, ("a",)), (1, ("a", "b")), (0, ("ab",)), (0, ("b", "a"))]
    assert len({derive(seed, *path) for seed, path in names}) == len(names)
    first, again = (torch.rand(4, generator=generator(3, "x")) for _ in range(2))
    assert torch.equal(first, again)


def test_ambient_leaves_no_trace() -> None:
    state = torch.get_rng_state()
    with ambient(7, "init"):
        inside = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)
    with ambient(7, "init"):
        assert torch.equal(torch.rand(3), inside)


def _set(seed: int, names: tuple[str, ...] = ("a", "b")) -> ImageSet:
    images = torch.rand(6, 1, 4, 4, generator=generator(seed, "images"))
    return ImageSet(images, torch.arange(6) % 2, names)


def test_a_shared_picture_is_refused_even_when_re_encoded() -> None:
    private, heldout = _set(0), _set(1)
    copied = (private.images[3:4] * 255).round() / 255  # what an 8-bit file would keep
    public = ImageSet(torch.cat((_set(2).images, copied)), torch.zeros(7, dtype=torch.int64), ("a",))
    with pytest.raises(UsageError, match="'private' and 'public' share an image"):
        Splits(private, heldout, public).require_disjoint_images()
    Splits(private, heldout, _set(2)).require_disjoint_images()


def test_shared_identities_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="identities b"):
        Splits(_set(0), _set(1), _set(2, ("c", "b"))).require_disjoint_identities()
    Splits(_set(0), _set(1), _set(2, ("c", "d"))).require_disjoint_identities()


def test_the_digest_sees_pixels_labels_and_order() -> None:
    data = _set(0)
    others = [
        data.take(torch.tensor([1, 0, 2, 3, 4, 5])),
        ImageSet(data.images, 1 - data.labels, data.classes),
        _set(1),
    ]
    assert len({part.digest() for part in [data, *others]}) == 4
