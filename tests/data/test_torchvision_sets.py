from __future__ import annotations

import gzip
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image

from leakscope.core.compat import ensure_torchvision
from leakscope.core.data import DATASETS
from leakscope.core.errors import UsageError
from leakscope.data import torchvision_sets
from leakscope.data.torchvision_sets import CelebA, FashionMnist, parse_idx

NAMES = ("mnist", "fashion-mnist", "cifar10", "svhn", "celeba")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, *, packed: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    parts = []
    for prefix, n in (("train", 12), ("t10k", 5)):
        images, labels = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), (np.arange(n) % 10).astype(np.uint8)
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            raw = idx(array)
            (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(raw) if packed else raw)
        parts.append((images, labels))
    return np.concatenate([parts[0][0], parts[1][0]]), np.concatenate([parts[0][1], parts[1][1]])


@pytest.fixture(autouse=True)
def no_debian_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torchvision_sets, "DEBIAN_FASHION", tmp_path / "absent")


@pytest.mark.parametrize("name", NAMES)
def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--data-root") as unrooted:
        DATASETS.build(name).load(None)
    with pytest.raises(UsageError, match=rf"put {name}.npz there, or use {name}:download=true") as absent:
        DATASETS.build(name).load(tmp_path)
    assert "\n" not in str(unrooted.value) + str(absent.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_download_without_network_is_one_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_torchvision()
    from torchvision import datasets

    def offline(*args: Any, **kwargs: Any) -> None:
        raise URLError("no route\nto host")

    for cls in ("MNIST", "FashionMNIST", "CIFAR10", "SVHN", "CelebA"):
        monkeypatch.setattr(datasets, cls, offline)
    with pytest.raises(UsageError, match=r"could not be downloaded .*check the network") as caught:
        DATASETS.build(f"{name}:download=true").load(tmp_path / "new")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "svhn", "celeba"])
def test_an_archive_in_the_root_comes_first(tmp_path: Path, name: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / f"{name}.npz", train_images=images, train_labels=np.arange(20) % 10)
    data = DATASETS.build(name).load(tmp_path)
    assert len(data) == 20
    assert len(data.classes) == 10


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
@pytest.mark.parametrize("packed", [True, False])
def test_the_files_of_torchvision_are_read(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    images, labels = write_idx(tmp_path / folder / "raw", packed=packed)
    data = DATASETS.build(name).load(tmp_path)
    assert np.array_equal((data.images[:, 0] * 255).round().numpy(), images)
    assert np.array_equal(data.labels.numpy(), labels)


def test_the_files_of_debian_are_found_without_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = write_idx(tmp_path / "debian", packed=True)
    monkeypatch.setattr(torchvision_sets, "DEBIAN_FASHION", tmp_path / "debian")
    data = FashionMnist().load(None)
    assert len(data) == len(images)
    assert data.classes[9] == "ankle boot"


@pytest.mark.parametrize("raw", [b"", b"\0\0\x08", idx(np.zeros((3, 4), np.uint8))[:-1], b"\0\0\x0d\x01" + b"\0" * 8])
def test_a_damaged_idx_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(UsageError, match="not a complete idx file"):
        parse_idx(tmp_path / "x")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"12345678" * 99)[:-20])
    with pytest.raises(UsageError, match="damaged"):
        parse_idx(tmp_path / "x.gz")


def test_celeba_keeps_the_people_with_most_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    owners = [7, 3, 7, 12, 3, 7]
    lines = []
    for number, owner in enumerate(owners):
        Image.new("RGB", (178, 218), (number * 20, owner, 0)).save(folder / f"{number:06d}.png")
        lines.append(f"{number:06d}.png {owner}")
    (tmp_path / "celeba" / "identity_CelebA.txt").write_text("\n".join(lines))
    data = CelebA(identities=2, size=32).load(tmp_path)
    assert data.classes == ("person3", "person7")
    assert data.labels.tolist() == [0, 0, 1, 1, 1]
    assert (data.images[:, 0, 5, 5] * 255).round().tolist() == [20, 80, 0, 40, 100]
    assert data.shape == (3, 32, 32)


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_what_torchvision_reads_is_joined_channels_first(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_torchvision()
    from torchvision import datasets

    rng = np.random.default_rng(0)
    truth = rng.integers(0, 256, (2, 6, 3, 32, 32), dtype=np.uint8)  # train and test, N×C×H×W

    def stored(root: str, *, download: bool, train: bool | None = None, split: str = "") -> SimpleNamespace:
        part = truth[0 if train or split == "train" else 1]
        if name == "cifar10":  # torchvision keeps this one channels last, and calls its labels targets
            return SimpleNamespace(data=part.transpose(0, 2, 3, 1), targets=[0, 1, 2, 0, 1, 2])
        return SimpleNamespace(data=part, labels=np.array([0, 1, 2, 0, 1, 2]))

    monkeypatch.setattr(datasets, "CIFAR10" if name == "cifar10" else "SVHN", stored)
    data = DATASETS.build(name).load(tmp_path)
    assert np.array_equal((data.images * 255).round().numpy(), truth.reshape(12, 3, 32, 32))
    assert data.labels.tolist() == [0, 1, 2] * 4
