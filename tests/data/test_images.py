from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from leakscope.core.data import ImageSet
from leakscope.core.errors import UsageError
from leakscope.data.images import checked, from_arrays, from_torch, resized


def images(n: int = 4, side: int = 6, channels: int = 1) -> Tensor:
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(0))


def labels(n: int = 4) -> Tensor:
    return torch.arange(n) % 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_pixels_that_are_no_numbers_are_refused_by_position(value: float) -> None:
    bad = images()
    bad[2, 0, 1, 1] = value
    with pytest.raises(UsageError, match=r"scans: image 2 has NaN"):
        checked(ImageSet(bad, labels(), ("a", "b")), "scans")


def test_pixels_out_of_range_are_refused_unless_they_are_points() -> None:
    wide = images() * 3
    with pytest.raises(UsageError, match="normalisation"):
        checked(ImageSet(wide, labels(), ("a", "b")))
    assert checked(ImageSet(wide, labels(), ("a", "b"), pixels=False)).pixels is False


def test_one_class_and_no_image_are_refused() -> None:
    with pytest.raises(UsageError, match="one class only, 'a'"):
        checked(ImageSet(images(), torch.zeros(4, dtype=torch.int64), ("a", "b")))
    with pytest.raises(UsageError, match="empty"):
        checked(ImageSet(images(0), labels(0), ("a", "b")))


def test_labels_without_a_name_are_refused() -> None:
    with pytest.raises(UsageError, match="from 0 to 1 but there are 1"):
        checked(ImageSet(images(), labels(), ("a",)))


@settings(max_examples=30)
@given(side=st.integers(3, 20), size=st.integers(1, 24))
def test_resizing_agrees_with_pillow(side: int, size: int) -> None:
    data = ImageSet(images(2, side), labels(2), ("a", "b"))
    expected = [
        np.asarray(Image.fromarray(picture[0].numpy()).resize((size, size), Image.Resampling.BILINEAR))
        for picture in data.images
    ]
    shown = resized(data, size).images[:, 0]
    torch.testing.assert_close(shown, torch.from_numpy(np.stack(expected)), rtol=0, atol=1e-5)


def test_a_wide_picture_keeps_its_middle() -> None:
    wide = torch.zeros(2, 1, 4, 10)
    wide[..., 3:7] = 1
    square = resized(ImageSet(wide, labels(2), ("a", "b")), 8)
    assert square.shape == (1, 8, 8)
    assert bool((square.images == 1).all())


def test_points_and_sizes_below_one_are_not_resized() -> None:
    with pytest.raises(UsageError, match="points"):
        resized(ImageSet(images(), labels(), ("a", "b"), pixels=False), 8)
    with pytest.raises(UsageError, match="positive"):
        resized(ImageSet(images(), labels(), ("a", "b")), 0)


def test_arrays_become_channels_first() -> None:
    colour = np.arange(4 * 2 * 3 * 3, dtype=np.uint8).reshape(4, 2, 3, 3)
    data = from_arrays(colour, np.array([[0], [1], [0], [1]]), "x")
    assert data.shape == (3, 2, 3)
    assert float(data.images[1, 2, 0, 1]) == pytest.approx(colour[1, 0, 1, 2] / 255)
    assert data.classes == ("0", "1")


@pytest.mark.parametrize(
    ("pixels", "numbers", "message"),
    [
        (np.zeros((4, 2), np.uint8), np.arange(4) % 2, "shape"),
        (np.zeros((4, 2, 2, 2), np.uint8), np.arange(4) % 2, "channels"),
        (np.zeros((4, 2, 2), np.int32), np.arange(4) % 2, "int32"),
        (np.zeros((4, 2, 2), np.uint8), np.arange(3) % 2, "4 images but 3 labels"),
        (np.zeros((4, 2, 2), np.uint8), np.ones(4), "float64"),
        (np.zeros((4, 2, 2), np.uint8), np.ones((4, 3), int), "one class number"),
        (np.zeros((4, 2, 2), np.uint8), np.array([0, 1, -1, 0]), "number the classes from 0"),
        (np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 10**9, 0]), "largest label"),
    ],
)
def test_malformed_arrays_are_refused(pixels: np.ndarray, numbers: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_arrays(pixels, numbers, "x")


class Listed(Dataset[tuple[object, object]]):
    def __init__(self, items: list[tuple[object, object]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> tuple[object, object]:
        return self.items[position]


class Streamed(IterableDataset[tuple[object, object]]):
    def __iter__(self) -> Iterator[tuple[object, object]]:
        return iter(zip(images(), labels(), strict=True))


def test_every_way_to_hand_over_the_same_pictures_gives_the_same_set() -> None:
    x, y = images(), labels()
    whole = from_torch((x, y))
    listed = from_torch(Listed(list(zip(x, y, strict=True))))
    for data in (whole, listed, from_torch(TensorDataset(x, y)), from_torch(Streamed()), from_torch((x[:, 0], y))):
        assert data.digest() == whole.digest()
    assert torch.equal(whole.images, x)


def test_pil_pictures_and_bytes_become_floats() -> None:
    byte = (images(channels=3) * 255).byte()
    pictures = [(Image.fromarray(item.permute(1, 2, 0).numpy()), int(label)) for item, label in zip(byte, labels())]
    data = from_torch(Listed(list(pictures)), classes=["cat", "dog"])
    assert data.classes == ("cat", "dog")
    assert torch.equal(data.images, byte / 255)
    assert data.digest() == from_torch((byte, labels())).digest()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ((images() * 255, labels()), r"not in \[0, 1\]"),
        ((images(channels=3).permute(0, 2, 3, 1), labels()), "permute"),
        ((images().long(), labels()), "int64"),
        ((images().flatten(1), labels()), "shape"),
        ((images(), labels(), labels()), "3 tensors"),
        (Listed([]), "empty"),
        (Listed([(images()[0], "cat")]), "item 0"),
        (Listed([(images()[0], 0), (images(side=5)[0], 1)]), "resize all"),
    ],
)
def test_unusable_torch_data_is_refused(dataset: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_torch(dataset)  # type: ignore[arg-type]
