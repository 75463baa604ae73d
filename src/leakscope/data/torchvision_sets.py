"""Well-known sets, from an archive in the data root or from the files that torchvision keeps there."""

from __future__ import annotations

import gzip
import importlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakscope.core.compat import ensure_torchvision
from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.files import require_file
from leakscope.core.memory import require_room
from leakscope.data.folder import read
from leakscope.data.images import from_arrays
from leakscope.data.npz import read_npz

DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
DIGITS = tuple(str(number) for number in range(10))
FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@DATASETS.register("mnist")
@dataclass(frozen=True)
class Mnist:
    """MNIST, 28×28 grey: LeCun et al., "Gradient-based learning applied to document recognition" (1998)."""

    download: bool = False

    def load(self, root: Path | None) -> ImageSet:
        archive = _archive("mnist", root)
        if archive is not None:
            return read_npz(archive, DIGITS)
        root = _required_root("mnist", root)
        folder = root / "MNIST" / "raw"
        if self.download and not _has_idx(folder):
            _torchvision("mnist", "MNIST", root, download=True, train=True)
        return _read_idx(folder, "mnist", root, DIGITS)


@DATASETS.register("fashion-mnist")
@dataclass(frozen=True)
class FashionMnist:
    """Fashion-MNIST, 28×28 grey: Xiao et al. (2017); also found where Debian's package puts it."""

    download: bool = False

    def load(self, root: Path | None) -> ImageSet:
        archive = _archive("fashion-mnist", root)
        if archive is not None:
            return read_npz(archive, FASHION)
        if _has_idx(DEBIAN_FASHION):
            return _read_idx(DEBIAN_FASHION, "fashion-mnist", root, FASHION)
        root = _required_root("fashion-mnist", root, "or install Debian's dataset-fashion-mnist")
        folder = root / "FashionMNIST" / "raw"
        if self.download and not _has_idx(folder):
            _torchvision("fashion-mnist", "FashionMNIST", root, download=True, train=True)
        return _read_idx(folder, "fashion-mnist", root, FASHION)


@DATASETS.register("cifar10")
@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10, 32×32 RGB: Krizhevsky, "Learning multiple layers of features from tiny images" (2009)."""

    download: bool = False

    def load(self, root: Path | None) -> ImageSet:
        archive = _archive("cifar10", root)
        if archive is not None:
            return read_npz(archive, CIFAR10)
        root = _required_root("cifar10", root)
        # torchvision unpickles these files, but only after their checksums matched.
        parts = [
            _torchvision("cifar10", "CIFAR10", root, download=self.download, train=train) for train in (True, False)
        ]
        images = np.concatenate([np.asarray(part.data) for part in parts])
        return from_arrays(images, np.concatenate([np.asarray(part.targets) for part in parts]), "cifar10", CIFAR10)


@DATASETS.register("svhn")
@dataclass(frozen=True)
class Svhn:
    """Street View House Numbers, cropped digits, 32×32 RGB: Netzer et al. (2011)."""

    download: bool = False

    def load(self, root: Path | None) -> ImageSet:
        archive = _archive("svhn", root)
        if archive is not None:
            return read_npz(archive, DIGITS)
        root = _required_root("svhn", root)
        parts = [_torchvision("svhn", "SVHN", root, download=self.download, split=split) for split in ("train", "test")]
        images = np.concatenate([np.asarray(part.data) for part in parts]).transpose(0, 2, 3, 1)  # they are NCHW
        return from_arrays(images, np.concatenate([np.asarray(part.labels) for part in parts]), "svhn", DIGITS)


@DATASETS.register("celeba")
@dataclass(frozen=True)
class CelebA:
    """The `identities` people of CelebA with most pictures, centre square at `size`: Liu et al. (2015)."""

    download: bool = False
    identities: int = 1000
    size: int = 64

    def __post_init__(self) -> None:
        if self.identities < 2 or self.size < 1:
            raise ValueError("identities must be at least 2 and size at least 1")

    def load(self, root: Path | None) -> ImageSet:
        archive = _archive("celeba", root)
        if archive is not None:
            return read_npz(archive)
        root = _required_root("celeba", root)
        folder = root / "celeba"
        table = folder / "identity_CelebA.txt"
        if self.download and not table.is_file():
            _torchvision("celeba", "CelebA", root, download=True, split="all", target_type="identity")
        if not table.is_file():
            raise _absent("celeba", root)
        try:
            names, people = np.loadtxt(table, dtype=str, ndmin=2).T
        except ValueError:
            raise UsageError(f"{table} is damaged; each line is a file name and a person's number") from None
        known, owner, counts = np.unique(people, return_inverse=True, return_counts=True)
        most = np.sort(np.argsort(-counts, kind="stable")[: self.identities])
        kept = np.flatnonzero(np.isin(owner, most))
        kept = kept[np.argsort(owner[kept], kind="stable")]
        files = [folder / "img_align_celeba" / Path(str(name)).name for name in names[kept]]
        labels = np.searchsorted(most, owner[kept]).tolist()
        return read(files, labels, [f"person{known[item]}" for item in most], "celeba", resize=self.size, grey=False)


def _archive(name: str, root: Path | None) -> Path | None:
    """`NAME.npz` in the data root, in the MedMNIST layout, when there is one."""
    path = None if root is None else root / f"{name}.npz"
    return path if path is not None and path.is_file() else None


def _absent(name: str, root: Path) -> UsageError:
    return UsageError(f"{name} is not in {root}: put {name}.npz there, or use {name}:download=true with a network")


def _required_root(name: str, root: Path | None, otherwise: str = "") -> Path:
    if root is None:
        also = f", {otherwise}" if otherwise else ""
        raise UsageError(
            f"{name} needs a data folder: give --data-root or set LEAKSCOPE_DATA{also}; mnist5k needs none"
        )
    return root


def _torchvision(name: str, cls: str, root: Path, *, download: bool, **choice: Any) -> Any:
    """One of torchvision's sets; its many ways to fail become one line."""
    ensure_torchvision()
    make = getattr(importlib.import_module("torchvision.datasets"), cls)
    if not download:
        try:
            return make(str(root), download=False, **choice)
        except (RuntimeError, OSError, ModuleNotFoundError):
            raise _absent(name, root) from None
    try:
        root.mkdir(parents=True, exist_ok=True)
        return make(str(root), download=True, **choice)
    except (RuntimeError, OSError, ModuleNotFoundError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UsageError(
            f"{name} could not be downloaded ({reason}); check the network, or put {name}.npz into {root}"
        ) from None


IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_file(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def _has_idx(folder: Path) -> bool:
    return all(idx_file(folder, name) for name in IDX)


def _read_idx(folder: Path, name: str, root: Path | None, classes: Sequence[str]) -> ImageSet:
    files = [idx_file(folder, item) for item in IDX]
    arrays = [parse_idx(file) for file in files if file is not None]
    if len(arrays) < len(IDX):
        raise _absent(name, root or folder)
    return from_arrays(np.concatenate(arrays[::2]), np.concatenate(arrays[1::2]), name, classes)


def parse_idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes in the idx format: 0, 0, type 8, rank, then each extent as big-endian int32, then the data."""
    require_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            rank = start[3] if len(start) == 4 and start[:3] == b"\0\0\x08" else 0
            extents = file.read(4 * rank)
            shape = [int.from_bytes(extents[4 * axis : 4 * axis + 4], "big") for axis in range(rank)]
            claimed = math.prod(shape)
            if 0 < rank <= 4 and len(extents) == 4 * rank:
                require_room(6 * claimed, str(path), "get a clean copy, or use fewer pictures")
                # One byte more than there should be: what unpacks to more is no idx file, however much more.
                raw = file.read(claimed + 1)
                if len(raw) == claimed:
                    return np.frombuffer(raw, dtype=np.uint8).reshape(shape)
    except MemoryError:
        raise UsageError(f"{path} does not fit into memory; get a clean copy") from None
    except (OSError, EOFError, zlib.error, OverflowError):
        raise UsageError(f"{path} is damaged; get a clean copy") from None
    raise UsageError(f"{path} is not a complete idx file of bytes; get a clean copy")
