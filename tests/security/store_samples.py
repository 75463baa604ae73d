"""A small store with every sort of file in it, and ways to spoil one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from leakscope.core.spec import digest
from leakscope.store import Store

KEY = digest("a result")
OTHER = digest("a target")
GRID: dict[str, Any] = {"configs": {}, "jobs": [], "budgets": {}, "summary": {"name": "grid", "jobs": 0}}


def filled(root: Path) -> Store:
    """Two entries with tensors, two without, and an index."""
    store = Store(root)
    scores = torch.linspace(0, 1, 8)
    store.put("result", KEY, {"summary": {"leak": 0.97}, "attack": OTHER}, {"leak": scores, "mse": 1 - scores})
    store.put("attack", OTHER, {"plan": {"kind": "ridge"}, "rate": 1e-05}, {"guess": torch.rand(8, 1, 4, 4)})
    store.put("target", OTHER, {"accuracy": 0.9, "plan": {"kind": "mlp"}})
    store.put("grid", digest(GRID), GRID)
    store.summaries("result")
    return store


def flip(path: Path, bit: int) -> None:
    """One bit of a file, in place."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def some_bits(path: Path, count: int) -> list[int]:
    """Bits of a file that are in bytes that say something, all of them when there are few."""
    said = [place for place, byte in enumerate(path.read_bytes()) if byte]
    bits = [8 * place + bit for place in said for bit in range(8)]
    return bits if len(bits) <= count else random.Random(path.name).sample(bits, count)


def reseal(folder: Path, record: dict[str, Any]) -> None:
    """What somebody does who knows the format and may write to the store: new content, new hashes."""
    from leakscope.store.sealing import Seal, file_sha256, sha256

    text = json.dumps(record).encode()
    (folder / "record.json").write_bytes(text)
    tensors = folder / "tensors.safetensors"
    hashed = file_sha256(tensors) if tensors.exists() else None
    size = tensors.stat().st_size if tensors.exists() else 0
    (folder / "seal.json").write_bytes(Seal(folder.parts[-3], folder.name, sha256(text), hashed, size).text())
