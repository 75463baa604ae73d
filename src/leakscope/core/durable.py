"""Atomic, synced writes: after a power cut a file is the old one or the new one, complete."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


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
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def make_folders(path: Path) -> None:
    """`mkdir --parents`, with the name of every new folder on the disk."""
    if path.is_dir():
        return
    make_folders(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)
