"""Pictures in one folder a class: the ImageFolder layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.data.decoding import SUFFIXES, decoded
from leakscope.data.images import from_arrays
from leakscope.data.parts import split_folders


@DATASETS.register("folder")
@dataclass(frozen=True)
class Folder:
    """`folder:PATH`, with `PATH/CLASS/…/picture.png`; classes and files in the order of their names.

    `PATH/train/CLASS/…` beside `PATH/val` or `PATH/test` is recognised: an audit then takes `train` for what the
    network was trained on, `test` (or `val`) for what users send, and `val` beside `test` for the attacker's.
    """

    path: str
    resize: int | None = None
    grey: bool = False

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"resize must be a positive number of pixels, not {self.resize}")

    def load(self, root: Path | None) -> ImageSet:
        folder = located(self.path, root)
        if not folder.is_dir():
            raise UsageError(f"folder {self.path!r} does not exist or is not a folder; write folder:PATH")
        # `train`, `val` and `test` are no classes: theirs are inside.
        roots = list(split_folders(folder).values()) or [folder]
        classes = sorted({item.name for root in roots for item in _class_folders(root)})
        if not classes:
            raise UsageError(f"folder {self.path!r} has no class folders; put its images at PATH/CLASS/image.png")
        files: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(classes):
            found = [file for root in roots if (root / name).is_dir() for file in pictures(root / name)]
            if not found:
                raise UsageError(f"class folder {str(folder / name)!r} is empty; add images to it or remove it")
            files += found
            labels += [label] * len(found)
        if len(classes) == 1:
            raise UsageError(f"folder {self.path!r} has one class only, {classes[0]!r}; add a folder for another class")
        return read(files, labels, classes, f"folder {self.path!r}", resize=self.resize, grey=self.grey)


def _class_folders(folder: Path) -> list[Path]:
    return [item for item in folder.iterdir() if item.is_dir() and not item.name.startswith((".", "__"))]


def located(path: str, root: Path | None) -> Path:
    """`path` as given, or below the data root when only that exists."""
    given = Path(path).expanduser()
    below = None if root is None or given.is_absolute() else root / given
    return below if below is not None and not given.exists() and below.exists() else given


def pictures(folder: Path) -> list[Path]:
    """The image files below `folder`, by name; hidden ones left out."""
    found = (item for item in folder.rglob("*") if item.suffix.lower() in SUFFIXES and not item.name.startswith("."))
    return sorted(item for item in found if item.is_file())


def read(
    files: Sequence[Path], labels: Sequence[int], classes: Sequence[str], name: str, *, resize: int | None, grey: bool
) -> ImageSet:
    """Decode `files` into one image set; they must agree in size unless they are resized."""
    arrays = [decoded(file, str(file), resize=resize, grey=grey) for file in files]
    sizes = Counter(array.shape[:2] for array in arrays)
    if len(sizes) > 1:
        common = sizes.most_common(1)[0][0]
        odd = next(position for position, array in enumerate(arrays) if array.shape[:2] != common)
        (height, width), found = common, arrays[odd].shape
        raise UsageError(
            f"{name} mixes image sizes: {files[odd]} is {found[1]}×{found[0]}, most are {width}×{height}; "
            "give one size with --resize"
        )
    return from_arrays(np.stack(arrays), np.array(labels), name, classes)
