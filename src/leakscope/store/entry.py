"""One finished stage as it lies on the disk: read only when its seal fits."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.core.durable import save_tensors, sync, write_synced
from leakscope.core.errors import UsageError
from leakscope.store.sealing import SEAL, Damaged, Seal, file_sha256, secret, sha256

if TYPE_CHECKING:
    from torch import Tensor

RECORD, TENSORS = "record.json", "tensors.safetensors"
_KEY = re.compile(r"[0-9a-f]{24}")
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,39}")


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def require_names(kind: str, key: str) -> None:
    """A kind and a key become a path: nothing else may."""
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise UsageError(f"{str(kind)[:60]!r} is not a kind of store entry; kinds are plain names such as 'result'")
    if not isinstance(key, str) or not is_key(key):
        raise UsageError(f"{str(key)[:60]!r} is not a key; keys have 24 hexadecimal digits")


@dataclass(frozen=True)
class Entry:
    """One finished stage."""

    kind: str
    key: str
    folder: Path

    @cached_property
    def _opened(self) -> tuple[Seal, dict[str, Any]]:
        """Seal and record, once they are seen to belong together."""
        key = secret()
        try:
            text = (self.folder / RECORD).read_bytes()
            seal = Seal.parse((self.folder / SEAL).read_bytes())
            if (seal.kind, seal.key) != (self.kind, self.key):
                raise ValueError("its seal is of another entry")
            if seal.record != sha256(text):
                raise ValueError("its record was changed after it was written")
            record = json.loads(text)
            if not isinstance(record, dict):
                raise ValueError("its record is no table")
            path = self.folder / TENSORS
            size = path.stat().st_size if seal.tensors is not None else 0
            if size != seal.size or (seal.tensors is None and path.exists()):
                raise ValueError(f"its tensors have {size} bytes, not {seal.size}")
        except PermissionError as error:
            raise not_allowed(self.folder, error) from None
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(error) from None
        seal.require_signature(key, self.folder)
        return seal, record

    def _damaged(self, error: Exception) -> Damaged:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())[:200]
        return Damaged(self.folder, reason)

    @property
    def record(self) -> dict[str, Any]:
        return self._opened[1]

    @property
    def signed(self) -> bool:
        """Whether its writer had a secret; with `LEAKSCOPE_STORE_KEY` set, this one."""
        return self._opened[0].signature is not None

    def tensors_file(self) -> Path:
        """The file with its tensors, once its hash is seen to fit; read it with safetensors and nothing else."""
        seal, path = self._opened[0], self.folder / TENSORS
        if seal.tensors is None:
            raise UsageError(f"store entry {self.folder} has no tensors; give the key of one that has")
        try:
            if file_sha256(path) != seal.tensors:
                raise ValueError("its tensors were changed after they were written")
        except PermissionError as error:
            raise not_allowed(self.folder, error) from None
        except (OSError, ValueError) as error:
            raise self._damaged(error) from None
        return path

    def tensors(self) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.tensors_file()
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise self._damaged(error) from None
        return tensors

    def require_whole(self) -> None:
        """Raise `Damaged` unless record and tensors are what was written."""
        if self._opened[0].tensors is not None:
            self.tensors_file()


def write_entry(
    folder: Path, kind: str, key: str, record: Mapping[str, Any], tensors: Mapping[str, Tensor] | None
) -> None:
    """The files of an entry in the empty folder `folder`; all of them are on the disk when this returns."""
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False).encode()
    write_synced(folder / RECORD, text)
    hashed, size = None, 0
    if tensors is not None:
        path = folder / TENSORS
        save_tensors(tensors, path)
        shutil.copymode(folder / RECORD, path)  # safetensors writes for its user alone, whatever the umask says
        sync(path)
        hashed, size = file_sha256(path), path.stat().st_size
    seal = Seal(kind, key, sha256(text), hashed, size).signed(secret())
    write_synced(folder / SEAL, seal.text())
    sync(folder)


def not_allowed(path: Path, error: OSError) -> UsageError:
    """Something is there, but not for this user: another thing than its absence."""
    owner = ""
    with suppress(OSError, KeyError):
        owner = f" of {path.owner()}"
    return UsageError(
        f"you may not use {path}{owner} ({error.strerror}); to share a store, its owner runs chmod -R g+rwX on it "
        "and everybody sets umask 002"
    )
