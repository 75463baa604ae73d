"""Splits as files: positions with the hash of what they must find there."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.core.data import ImageSet, Splits
from leakscope.core.errors import UsageError
from leakscope.core.files import read_json
from leakscope.data.splits import SplitIndex

_PARTS = ("private", "heldout", "public")
_REMEDY = "draw the splits again or use the set they were drawn from"


def write_index(index: SplitIndex, data: ImageSet, path: Path) -> None:
    """Write `{"dataset": digest, "by_identity": …, "splits": {name: {"indices": …, "sha256": …}}}`, atomically."""
    plain = {
        "dataset": data.digest(),
        "by_identity": index.by_identity,
        "splits": {
            name: {"indices": getattr(index, name).tolist(), "sha256": _hash(data, getattr(index, name))}
            for name in _PARTS
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(plain, file)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_index(data: ImageSet, path: Path) -> Splits:
    """The splits that `path` describes, refused when `data` is not what they were drawn from."""
    try:
        plain = read_json(path, "is it a split file? Draw the splits again")
    except FileNotFoundError:
        raise UsageError(f"split file {path} is missing; draw the splits again") from None
    try:
        parts = {name: _positions(plain["splits"][name]["indices"]) for name in _PARTS}
        hashes = {name: plain["splits"][name]["sha256"] for name in _PARTS}
        dataset, by_identity = str(plain["dataset"]), bool(plain["by_identity"])
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
        raise UsageError(f"split file {path} lacks a split, or its indices are no whole numbers; {_REMEDY}") from None
    for name, index in parts.items():
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(data):
            raise UsageError(f"split file {path}: {name} points outside the {len(data)} images; {_REMEDY}")
        if _hash(data, index) != hashes[name]:
            raise UsageError(f"split file {path}: the {name} images are not those it was written for; {_REMEDY}")
    if dataset != data.digest():
        raise UsageError(f"split file {path} was written for another data set; {_REMEDY}")
    return SplitIndex(parts["private"], parts["heldout"], parts["public"], by_identity=by_identity).splits(data)


def _positions(plain: Any) -> Tensor:
    if not isinstance(plain, list) or not all(type(item) is int for item in plain):
        raise TypeError("indices must be whole numbers")
    return torch.tensor(plain, dtype=torch.int64)


def _hash(data: ImageSet, index: Tensor) -> str:
    """SHA-256 of the images and labels at `index`, in order."""
    part = data.take(index)
    whole = hashlib.sha256(part.images.contiguous().numpy().tobytes())
    whole.update(part.labels.numpy().tobytes())
    return whole.hexdigest()
