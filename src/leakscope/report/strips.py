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
from leakscope.store import Entry, Store

#: Victims in a strip.
SHOWN = 8


def rebuilt(store: Store, key: str, count: int = SHOWN) -> NDArray[np.uint8] | None:
    """The first reconstructions behind a result, N×C×H×W; None when they are no pictures, or gone."""
    result = store.get("result", key)
    attack = None if result is None else store.get("attack", result.record["attack"])
    return None if attack is None else _first(attack, "guess", count)


def originals(store: Store, victims: str, count: int = SHOWN) -> NDArray[np.uint8] | None:
    """The first victims with this digest."""
    entry = store.get("victims", victims) if victims else None
    return None if entry is None else _first(entry, "truth", count)


def _first(entry: Entry, name: str, count: int) -> NDArray[np.uint8] | None:
    path = entry.folder / "tensors.safetensors"
    try:
        with safe_open(path, framework="numpy") as file:
            pictures = file.get_slice(name)[:count]
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


def write_strip(store: Store, key: str, path: Path) -> None:
    """Originals, when the store has them, above what was rebuilt of them."""
    guess = rebuilt(store, key)
    if guess is None:
        raise UsageError(f"the store holds no pictures of {key}; give the key of a result of an attack on pictures")
    entry = store.get("result", key)
    assert entry is not None
    truth = originals(store, entry.record.get("summary", {}).get("victims", ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png([guess] if truth is None else [truth, guess]))
