"""Small pictures of what an attack rebuilt, straight from the store."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open

from leakscope.core.errors import UsageError
from leakscope.core.results import AttackResult
from leakscope.store import Entry, Store

#: Victims in a strip.
SHOWN = 8
#: Kinds of the store: scores by `AttackResult.key`, pictures by `.reconstruction`, originals by `.victims`.
SCORES, RECONSTRUCTIONS, VICTIMS = "result", "attack", "victims"


def rebuilt(store: Store, result: AttackResult, count: int = SHOWN) -> NDArray[np.uint8] | None:
    """The first reconstructions behind a result, N×C×H×W; None if they are not pictures, or were deleted."""
    entry = store.get(RECONSTRUCTIONS, result.reconstruction)
    return None if entry is None else _first(entry, "guess", count)


def originals(store: Store, victims: str, count: int = SHOWN) -> NDArray[np.uint8] | None:
    """The first victims with this digest."""
    entry = store.get(VICTIMS, victims) if victims else None
    return None if entry is None else _first(entry, "truth", count)


def record_path(key: str) -> str:
    """Where the scores of a result lie, from the root of its store."""
    return f"entries/{SCORES}/{key[:2]}/{key}/record.json"


def _first(entry: Entry, name: str, count: int) -> NDArray[np.uint8] | None:
    path = entry.tensors_file()
    try:
        with safe_open(path, framework="numpy") as file:
            part = file.get_slice(name)
            pictures = part[: min([count, *part.get_shape()[:1]])]  # some versions refuse to end behind the end
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"store entry {path} is unreadable ({error}); delete {entry.folder} to compute it again"
        ) from None
    if pictures.ndim != 4 or pictures.shape[1] not in (1, 3) or min(pictures.shape[2:]) < 2:
        return None
    scaled: NDArray[np.uint8] = pictures
    if pictures.dtype != np.uint8:
        scaled = (pictures * 255).round().clip(0, 255).astype(np.uint8)
    return scaled


def png(rows: list[NDArray[np.uint8]]) -> bytes:
    """Rows of pictures as one PNG, a white line between neighbours."""
    lines = []
    for row in rows:
        padded = np.pad(row, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=255)
        lines.append(padded.transpose(2, 0, 3, 1).reshape(padded.shape[2], -1, padded.shape[1]))
    width = min(line.shape[1] for line in lines)
    sheet = np.concatenate([line[:, :width] for line in lines])
    buffer = io.BytesIO()
    Image.fromarray(sheet[..., 0] if sheet.shape[-1] == 1 else sheet).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def data_uri(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def write_strip(store: Store, result: AttackResult, path: Path) -> None:
    """Originals, when the store has them, above what was rebuilt of them."""
    guess = rebuilt(store, result)
    if guess is None:
        raise UsageError(
            f"the store holds no pictures of {result.key}; give the key of a result of an attack on pictures"
        )
    truth = originals(store, result.victims)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png([guess] if truth is None else [truth, guess]))
