"""Archives in the layout of MedMNIST, named by path or found by name in the data root."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.files import require_file
from leakscope.core.memory import require_room
from leakscope.data.folder import located
from leakscope.data.images import from_arrays

#: Where sets come from that cannot be downloaded here.
_SOURCES = {
    "medical-mnist": "github.com/apolanco3225/Medical-MNIST-Classification, packed as npz:PATH is read",
    "pneumonia-mnist": "pneumoniamnist.npz of medmnist.com",
    "olivetti": "sklearn.datasets.fetch_olivetti_faces(), packed as npz:PATH is read",
}


@DATASETS.register("npz")
@dataclass(frozen=True)
class Npz:
    """`npz:PATH`: arrays `train_images` (N×H×W[×3], uint8 or float in [0, 1]), `train_labels`, and so on.

    The splits that exist are joined in the order train, val, test; `class_names` is optional. Layout:
    Yang et al., "MedMNIST v2" (2023).
    """

    path: str

    def load(self, root: Path | None) -> ImageSet:
        path = located(self.path, root)
        if not path.is_file():
            raise UsageError(f"npz file {self.path!r} does not exist; write npz:PATH")
        return read_npz(path)


@DATASETS.register("medical-mnist")
@dataclass(frozen=True)
class MedicalMnist:
    """Medical MNIST: six kinds of scan, 64×64 grey, from `medical-mnist.npz` in the data root."""

    def load(self, root: Path | None) -> ImageSet:
        return read_npz(in_root("medical-mnist", root))


@DATASETS.register("pneumonia-mnist")
@dataclass(frozen=True)
class PneumoniaMnist:
    """PneumoniaMNIST: chest X-rays of children, 28×28 grey, from `pneumonia-mnist.npz` in the data root."""

    def load(self, root: Path | None) -> ImageSet:
        return read_npz(in_root("pneumonia-mnist", root), ("normal", "pneumonia"))


@DATASETS.register("olivetti")
@dataclass(frozen=True)
class Olivetti:
    """Olivetti faces: 40 people, ten pictures each, 64×64 grey, from `olivetti.npz` in the data root."""

    def load(self, root: Path | None) -> ImageSet:
        return read_npz(in_root("olivetti", root), [f"person{number:02d}" for number in range(40)])


def in_root(name: str, root: Path | None) -> Path:
    """`NAME.npz` in the data root."""
    source = _SOURCES[name]
    if root is None:
        raise UsageError(
            f"{name} needs a data folder with {name}.npz (from {source}); give --data-root or set LEAKSCOPE_DATA"
        )
    path = root / f"{name}.npz"
    if not path.is_file():
        raise UsageError(f"{name}: there is no {path}; make it from {source}, or give another --data-root")
    return path


def read_npz(path: Path, classes: Sequence[str] | None = None) -> ImageSet:
    """The splits of one archive, joined. Arrays of Python objects are refused: loading one can run code."""
    images: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {item.filename.removesuffix(".npy"): item for item in archive.infolist()}
            wanted = _wanted(path, set(members))
            _require_sizes(path, archive, [members[name] for name in (*wanted, "class_names") if name in members])
            for name in wanted:
                (images if name.endswith("images") else labels).append(_array(archive, members[name]))
            if "class_names" in members:
                classes = [str(item) for item in _array(archive, members["class_names"]).ravel()]
    except UsageError:
        raise
    except MemoryError:
        raise UsageError(f"{path} does not fit into memory; use fewer pictures") from None
    except Exception as error:  # zipfile, zlib, lzma and numpy raise a dozen kinds for a damaged file
        raise UsageError(
            f"{path} was not loaded: {_reason(path, error)}; save plain arrays again with numpy.savez"
        ) from None
    for part in images[1:]:
        if part.shape[1:] != images[0].shape[1:] or part.dtype != images[0].dtype:
            raise UsageError(f"{path}: its splits differ in image shape or type; save all of them alike")
    flat = [part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part for part in labels]
    if len({part.ndim for part in flat}) > 1 or flat[0].ndim != 1:
        raise UsageError(f"{path}: labels must be one class number for each image (N or N×1)")
    for picture, label in zip(images, flat, strict=True):
        if picture.ndim == 0 or len(picture) != len(label):
            count = len(picture) if picture.ndim else 0
            raise UsageError(f"{path} has a split of {count} images with {len(label)} labels; make them equal")
    return from_arrays(np.concatenate(images), np.concatenate(flat), str(path), classes)


def _wanted(path: Path, keys: set[str]) -> list[str]:
    """The names of the arrays of the splits that there are, pictures before labels."""
    wanted: list[str] = []
    for split in ("train", "val", "test"):
        pair = [f"{split}_images", f"{split}_labels"]
        if set(pair) <= keys:
            wanted += pair
        elif set(pair) & keys:
            have, lack = sorted(pair, key=lambda name: name not in keys)
            raise UsageError(f"{path} has {have} but not {lack}; add it")
    if not wanted:
        found = ", ".join(sorted(keys)) or "nothing"
        raise UsageError(f"{path} needs the arrays train_images and train_labels; it has: {found[:300]}")
    return wanted


def _require_sizes(path: Path, archive: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo]) -> None:
    """Look at the headers before anything is read: an array has the bytes it claims, and all of them fit."""
    total = 0
    for member in members:
        with archive.open(member) as file:
            shape, dtype = _header(file)
            start = file.tell()
        claimed = math.prod(shape) * dtype.itemsize
        if claimed != member.file_size - start:
            raise ValueError(f"{member.filename} claims {claimed} bytes and has {member.file_size - start}")
        total += 2 * claimed + 4 * math.prod(shape)  # as read, joined, and as float32
    require_room(total, str(path), "use fewer pictures, or smaller ones")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, without its values; objects are refused."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError("unknown version of its arrays")
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("pickle")
    if any(length < 0 for length in shape):
        raise ValueError("negative length")
    return shape, dtype


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _reason(path: Path, error: Exception) -> str:
    if "pickle" in str(error):
        return "it holds pickled objects"
    if "password" in str(error) or "encrypted" in str(error):
        return "it is encrypted"
    if isinstance(error, PermissionError):
        return "you may not read it"
    if isinstance(error, zipfile.BadZipFile) and _starts_with(path, b"\x93NUMPY"):
        return "it is a single array, not an archive"
    return "it is damaged or no npz file"


def _starts_with(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark
