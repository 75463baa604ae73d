"""Atomic, synced writes: after a power cut a file is the old one or the new one, complete."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def sync(path: Path) -> None:
    """Wait until `path`, a file or a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, content: bytes) -> None:
    """A new file, on the disk when this returns; its name is durable once the folder is synced."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes) -> None:
    """Put `content` at `path`; readers, also after a power cut, see the old or the new content, complete."""
    with appearing(path) as temporary:
        write_synced(temporary, content)
    sync(path.parent)


def make_folders(path: Path) -> None:
    """`mkdir --parents`, with the name of every new folder on the disk."""
    if path.is_dir():
        return
    make_folders(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which then takes its place; of a write that failed nothing is left."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):  # what went wrong before tells more
            temporary.unlink(missing_ok=True)


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file; a disk that is full or read-only is an `OSError`, as everywhere else.

    Tensors that share their memory, as tied layers do, are each written whole.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    own: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, given in tensors.items():
        tensor = given.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    try:
        save_file(own, path, metadata)
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None
