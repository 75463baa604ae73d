"""Archives in the layout of MedMNIST, named by path or found by name in the data root."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.data.folder import located
from leakscope.data.images import from_arrays


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
    if root is None:
        raise UsageError(f"{name} needs a data folder with {name}.npz; give --data-root or set LEAKSCOPE_DATA")
    path = root / f"{name}.npz"
    if not path.is_file():
        raise UsageError(f"{name}: there is no {path}; put it there or give another --data-root")
    return path


def read_npz(path: Path, classes: Sequence[str] | None = None) -> ImageSet:
    """The splits of one archive, joined. Arrays of Python objects are refused: loading one can run code."""
    images, labels = [], []
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UsageError(f"{path} is a single array, not an archive; save it with numpy.savez")
        with archive:
            keys = set(archive.files)
            for split in ("train", "val", "test"):
                pair = {f"{split}_images", f"{split}_labels"}
                if pair <= keys:
                    images.append(archive[f"{split}_images"])
                    labels.append(archive[f"{split}_labels"])
                elif pair & keys:
                    raise UsageError(f"{path} has {(pair & keys).pop()} but not {(pair - keys).pop()}; add it")
            if not images:
                found = ", ".join(sorted(keys)) or "nothing"
                raise UsageError(f"{path} needs the arrays train_images and train_labels; it has: {found}")
            if "class_names" in keys:
                classes = [str(item) for item in archive["class_names"].ravel()]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it holds pickled objects" if "pickle" in str(error) else "it is damaged or no npz file"
        raise UsageError(f"{path} was not loaded: {reason}; save plain arrays again with numpy.savez") from None
    for part in images[1:]:
        if part.shape[1:] != images[0].shape[1:] or part.dtype != images[0].dtype:
            raise UsageError(f"{path}: its splits differ in image shape or type; save all of them alike")
    flat = [part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part for part in labels]
    if len({part.ndim for part in flat}) > 1 or flat[0].ndim != 1:
        raise UsageError(f"{path}: labels must be one class number for each image (N or N×1)")
    for picture, label in zip(images, flat, strict=True):
        if len(picture) != len(label):
            raise UsageError(f"{path} has a split of {len(picture)} images with {len(label)} labels; make them equal")
    return from_arrays(np.concatenate(images), np.concatenate(flat), str(path), classes)
