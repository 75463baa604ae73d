"""Labeled Faces in the Wild, straight from its archive."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from leakscope.core.data import DATASETS, ImageSet
from leakscope.core.errors import UsageError
from leakscope.core.files import require_file
from leakscope.core.memory import require_room
from leakscope.data.decoding import SUFFIXES, decoded
from leakscope.data.folder import pictures, read
from leakscope.data.images import from_arrays

File = TypeVar("File")
_SOURCE = "from vis-www.cs.umass.edu/lfw: lfw64/NAME/PICTURE.jpg, 64×64 pixels"
_LARGEST = 1 << 24  # bytes of one file; the real ones have some two thousand


@DATASETS.register("lfw")
@dataclass(frozen=True)
class Lfw:
    """Faces of people with at least `min_images` pictures, 64×64 RGB; a class is a person.

    Read from `lfw64.zip`, which is never unpacked, or the folder `lfw64`, in the data root. Huang et
    al., "Labeled Faces in the Wild" (2007). Twenty pictures leave 62 people.
    """

    min_images: int = 20
    max_images: int | None = None
    grey: bool = False

    def __post_init__(self) -> None:
        if self.min_images < 1:
            raise ValueError(f"min_images must be at least 1, not {self.min_images}")
        if self.max_images is not None and self.max_images < self.min_images:
            raise ValueError("max_images must be at least min_images")

    def load(self, root: Path | None) -> ImageSet:
        if root is None:
            raise UsageError(
                f"lfw needs a data folder with lfw64.zip ({_SOURCE}); give --data-root or set LEAKSCOPE_DATA"
            )
        archive, folder = root / "lfw64.zip", root / "lfw64"
        if archive.is_file():
            return self._from_zip(archive)
        if folder.is_dir():
            people = {item.name: pictures(item) for item in sorted(folder.iterdir()) if item.is_dir()}
            chosen = self._chosen(people)
            labels = [label for label, files in enumerate(chosen.values()) for _ in files]
            files = [file for files in chosen.values() for file in files]
            return read(files, labels, list(chosen), "lfw", resize=None, grey=self.grey)
        raise UsageError(f"lfw: there is neither {archive} nor the folder {folder} ({_SOURCE}); put one there")

    def _from_zip(self, path: Path) -> ImageSet:
        require_file(path)
        try:
            with zipfile.ZipFile(path) as archive:
                people: dict[str, list[str]] = defaultdict(list)
                for entry in archive.infolist():
                    inside = PurePosixPath(entry.filename)
                    if inside.is_absolute() or ".." in inside.parts or "\\" in entry.filename:
                        raise UsageError(f"{path} names a file outside itself ({entry.filename!r}); get a clean copy")
                    if entry.file_size > _LARGEST:
                        raise UsageError(
                            f"{path}: {entry.filename} unpacks to {entry.file_size} bytes; get a clean copy"
                        )
                    if len(inside.parts) == 3 and inside.suffix.lower() in SUFFIXES:
                        people[inside.parts[1]].append(entry.filename)
                chosen = self._chosen({name: sorted(people[name]) for name in sorted(people)})
                names = [name for files in chosen.values() for name in files]
                arrays: list[NDArray[np.uint8]] = []
                for name in names:
                    arrays.append(decoded(io.BytesIO(archive.read(name)), f"{path}:{name}", grey=self.grey))
                    if arrays[-1].shape != arrays[0].shape:
                        raise UsageError(f"{path} mixes image sizes; get a clean copy")
                    if len(arrays) == 1:
                        require_room(6 * len(names) * arrays[0].size, str(path), "set max_images")
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError) as error:
            raise UsageError(f"{path} is damaged ({error}); get a clean copy") from None
        labels = np.array([label for label, files in enumerate(chosen.values()) for _ in files])
        return from_arrays(np.stack(arrays), labels, "lfw", list(chosen))

    def _chosen(self, people: dict[str, list[File]]) -> dict[str, list[File]]:
        """Those with enough pictures, and of each at most `max_images`."""
        chosen = {name: files[: self.max_images] for name, files in people.items() if len(files) >= self.min_images}
        if len(chosen) < 2:
            raise UsageError(
                f"lfw: {len(chosen)} people have {self.min_images} images or more; at least two are needed: "
                "lower min_images"
            )
        return chosen
