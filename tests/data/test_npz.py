from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data.npz import Npz


def arrays(n: int = 6, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    plain = {
        "train_images": rng.integers(0, 256, (n, 5, 5), dtype=np.uint8),
        "train_labels": (np.arange(n) % 2).astype(np.uint8),
    }
    return {key: value for key, value in (plain | changes).items() if value is not None}


def test_splits_are_joined_train_val_test(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    extra: dict[str, Any] = {}
    for split, n in (("test", 2), ("val", 3)):
        extra[f"{split}_images"] = rng.integers(0, 256, (n, 5, 5), dtype=np.uint8)
        extra[f"{split}_labels"] = np.ones((n, 1), np.uint8)  # MedMNIST's own shape
    plain = arrays(**extra, class_names=np.array(["well", "ill"]))
    np.savez(tmp_path / "x.npz", **plain)
    data = DATASETS.build(f"npz:{tmp_path / 'x.npz'}").load(None)
    expected = np.concatenate([plain[f"{split}_images"] for split in ("train", "val", "test")])
    assert np.array_equal((data.images[:, 0] * 255).round().numpy(), expected)
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1]
    assert data.classes == ("well", "ill")


NAN = np.full((6, 5, 5), np.nan, np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": NAN}, "NaN"),
        ({"train_images": np.full((6, 5, 5), 255.0)}, r"not in \[0, 1\]"),
        ({"train_images": np.zeros((6, 5, 5), np.int16)}, "int16"),
        ({"train_images": np.zeros((6, 5), np.uint8)}, "shape"),
        ({"train_images": None}, "has train_labels but not train_images"),
        ({"train_images": None, "train_labels": None, "x": np.ones(3)}, "it has: x"),
        ({"train_labels": np.zeros(5, np.uint8)}, "6 images with 5 labels"),
        ({"train_labels": np.zeros((6, 14), np.uint8)}, "one class number"),
        ({"train_labels": np.zeros(6, np.uint8)}, "one class only"),
        ({"test_images": np.zeros((2, 4, 4), np.uint8), "test_labels": np.zeros(2, np.uint8)}, "splits differ"),
        ({"class_names": np.array(["only"])}, "class names"),
    ],
)
def test_malformed_archives_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays(**changes))
    with pytest.raises(UsageError, match=message) as caught:
        Npz(str(tmp_path / "x.npz")).load(None)
    assert "\n" not in str(caught.value)


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_is_refused_without_running_it(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Bomb(mark)))
    np.savez(tmp_path / "inside.npz", **arrays(train_images=np.array([Bomb(mark)] * 6, dtype=object)))
    for name in ("raw.npz", "inside.npz"):
        with pytest.raises(UsageError, match="not loaded"):
            Npz(str(tmp_path / name)).load(None)
    assert not mark.exists()


def test_truncated_single_and_missing_files_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", **arrays(60))
    whole = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="damaged"):
        Npz(str(tmp_path / "x.npz")).load(None)
    scrambled = bytearray(whole)
    scrambled[100:160] = b"\xff" * 60
    (tmp_path / "x.npz").write_bytes(scrambled)
    with pytest.raises(UsageError):
        Npz(str(tmp_path / "x.npz")).load(None)
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(UsageError, match="single array"):
        Npz(str(tmp_path / "x.npy")).load(None)
    with pytest.raises(UsageError, match="does not exist"):
        Npz("nowhere.npz").load(tmp_path)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("olivetti", "fetch_olivetti_faces"),
        ("medical-mnist", "Medical-MNIST"),
        ("pneumonia-mnist", "medmnist"),
    ],
)
def test_named_sets_say_where_they_belong_and_where_they_come_from(name: str, source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{source}.*LEAKSCOPE_DATA"):
        DATASETS.build(name).load(None)
    with pytest.raises(UsageError, match=rf"there is no .*{name}\.npz.*{source}"):
        DATASETS.build(name).load(tmp_path)


@pytest.mark.parametrize(
    ("name", "count", "shape", "classes"),
    [
        ("olivetti", 400, (1, 64, 64), 40),
        ("pneumonia-mnist", 5856, (1, 28, 28), 2),
        ("medical-mnist", 6000, (1, 64, 64), 6),
        ("svhn", 7000, (3, 32, 32), 10),
        ("cifar10", 10_000, (3, 32, 32), 10),
    ],
)
def test_the_shared_sets_load(shared_data: Path, name: str, count: int, shape: tuple[int, ...], classes: int) -> None:
    data = DATASETS.build(name).load(shared_data)
    assert (len(data), data.shape, len(data.classes)) == (count, shape, classes)
    assert len(data.labels.unique()) == classes
