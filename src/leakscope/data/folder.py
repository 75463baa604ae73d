"""Pictures in one folder per class: the ImageFolder layout."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leakscope.core.data import DATASETS, UNLABELLED, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.memory import require_room
from leakscope.data.decoding import SUFFIXES, decoded
from leakscope.data.images import from_arrays
from leakscope.data.parts import split_folders

#: Folders inside folders.
DEEPEST = 100


@DATASETS.register("folder")
@dataclass(frozen=True)
class Folder:
    """`folder:PATH`, with `PATH/CLASS/…/picture.png`; classes and files in the order of their names.

    Links that lead out of the folder are refused unless `follow_links` says that they are meant.
    `PATH/train/CLASS/…` beside `PATH/val` or `PATH/test` is recognised: an audit then takes `train` for what the
    network was trained on, `test` (or `val`) for what users send, and `val` beside `test` for the attacker's.
    """

    path: str
    resize: int | None = None
    grey: bool = False
    follow_links: bool = False

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
            return self._unlabelled(folder, roots)
        files: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(classes):
            inside = None if self.follow_links else folder
            held = (root / name for root in roots if (root / name).is_dir())
            found = [file for place in held for file in pictures(place, within=inside)]
            if not found:
                raise UsageError(f"class folder {str(folder / name)!r} is empty; add images to it or remove it")
            files += found
            labels += [label] * len(found)
        if len(classes) == 1:
            raise UsageError(f"folder {self.path!r} has one class only, {classes[0]!r}; add a folder for another class")
        return read(files, labels, classes, f"folder {self.path!r}", resize=self.resize, grey=self.grey)

    def _unlabelled(self, folder: Path, roots: Sequence[Path]) -> ImageSet:
        """Pictures that lie in no class folder: all of one class, for the goal `unlabelled`."""
        inside = None if self.follow_links else folder
        files = [file for root in roots for file in pictures(root, within=inside)]
        if not files:
            raise UsageError(f"folder {self.path!r} has no class folders; put its images at PATH/CLASS/image.png")
        name = f"folder {self.path!r}"
        return read(files, [0] * len(files), UNLABELLED, name, resize=self.resize, grey=self.grey)


def _class_folders(folder: Path) -> list[Path]:
    return [item for item in folder.iterdir() if item.is_dir() and not item.name.startswith((".", "__"))]


def located(path: str, root: Path | None) -> Path:
    """`path` as given, or below the data root when only that exists."""
    given = Path(path).expanduser()
    below = None if root is None or given.is_absolute() else root / given
    return below if below is not None and not given.exists() and below.exists() else given


def pictures(folder: Path, within: Path | None = None) -> list[Path]:
    """The image files below `folder`, by name; hidden ones left out.

    Links to folders inside it are not followed. With `within`, a link that leads out of that folder is refused.
    """
    base = None if within is None else within.resolve()
    if base is not None and folder.is_symlink():
        _require_inside(folder, base)
    found: list[Path] = []
    left = [(folder, 0)]
    while left:  # not recursive: folders can be deeper than Python's stack
        place, depth = left.pop()
        if depth > DEEPEST:
            raise UsageError(f"{folder} has folders {DEEPEST} deep and more; put its pictures nearer to the top")
        for item in _listed(place):
            path = place / item.name
            if base is not None and item.is_symlink():
                _require_inside(path, base)
            if item.is_dir(follow_symlinks=False):
                left.append((path, depth + 1))
            elif path.suffix.lower() in SUFFIXES and not item.name.startswith(".") and item.is_file():
                found.append(path)
    return sorted(found)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError as error:
        raise UsageError(f"cannot look into {folder} ({error.strerror}); change its rights or remove it") from None


def _require_inside(path: Path, base: Path) -> None:
    try:
        inside = path.resolve().is_relative_to(base)
    except (OSError, RuntimeError):  # links in a circle
        inside = False
    if not inside:
        raise UsageError(
            f"{path} is a link that leads out of {base}; copy the file, or write folder:PATH,follow_links=true"
        )


def read(
    files: Sequence[Path], labels: Sequence[int], classes: Sequence[str], name: str, *, resize: int | None, grey: bool
) -> ImageSet:
    """Decode `files` into one image set; they must agree in size unless they are resized."""
    arrays: list[NDArray[np.uint8]] = []
    shapes: list[tuple[int, ...]] = []
    for file in files:
        array = decoded(file, str(file), resize=resize, grey=grey)
        shapes.append(array.shape[:2])
        if len(shapes) == 1:  # bytes of all, once in the list, once in one array, and four times as float
            size = 6 * len(files) * array.size
            require_room(size, f"{name} ({len(files)} pictures)", "use fewer pictures or a smaller --resize")
        if shapes[-1] == shapes[0]:  # others are only counted: the room was planned for this size
            arrays.append(array)
    sizes = Counter(shapes)
    if len(sizes) > 1:
        common = sizes.most_common(1)[0][0]
        odd = next(position for position, shape in enumerate(shapes) if shape != common)
        (height, width), found = common, shapes[odd]
        raise UsageError(
            f"{name} mixes image sizes: {files[odd]} is {found[1]}×{found[0]}, most are {width}×{height}; "
            "give one size with --resize"
        )
    return from_arrays(np.stack(arrays), np.array(labels), name, classes)
